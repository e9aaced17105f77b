# The container image: layered, without a shell, run as an unprivileged user, with the data in the volume /data.
#
# The result is a program that writes the image to its standard output, as `docker load` and `podman load` take it.
{
  dockerTools,
  writeTextDir,
  python3,
  krappy,
  revision ? null, # the source's commit: 40 hex digits
}:
let
  environment = python3.withPackages (_: [ krappy ]);
  python = "${environment}/bin/python3";
  id = "10001";
  ready = "import urllib.request as r; r.urlopen('http://127.0.0.1:8092/readyz', timeout=3)";
in
dockerTools.streamLayeredImage {
  name = "krappy";
  tag = krappy.version;

  contents = [
    environment # /bin/krappy, /bin/python3: for `kubectl exec`
    (writeTextDir "etc/passwd" "krappy:x:${id}:${id}:Krappy:/data:/nologin\n")
    (writeTextDir "etc/group" "krappy:x:${id}:\n")
  ];

  # The image is built without root, so /data can't get another owner here. The mounted volume has its own owner.
  extraCommands = "mkdir -m 1777 data tmp";

  config = {
    User = "${id}:${id}";
    Entrypoint = [
      python
      "-m"
      "krappy"
    ];
    Cmd = [
      "serve"
      "--json"
    ];
    WorkingDir = "/data";
    StopSignal = "SIGTERM";
    Env = [
      "PATH=/bin"
      "KRAPPY_DATA=/data"
      # All addresses: the container's runtime or a NetworkPolicy restricts who can reach them.
      "KRAPPY_LISTEN_NATIVE=0.0.0.0:7092"
      "KRAPPY_LISTEN_KAFKA=0.0.0.0:9092"
      "KRAPPY_LISTEN_HTTP=0.0.0.0:8092"
      "PYTHONDONTWRITEBYTECODE=1"
      "PYTHONUTF8=1"
      "PYTHONUNBUFFERED=1"
    ];
    ExposedPorts = {
      "7092/tcp" = { };
      "8092/tcp" = { };
      "9092/tcp" = { };
    };
    Volumes."/data" = { };
    Healthcheck = {
      Test = [
        "CMD"
        python
        "-c"
        ready
      ];
      Interval = 10 * 1000000000;
      Timeout = 5 * 1000000000;
      StartPeriod = 60 * 1000000000;
      Retries = 3;
    };
    Labels = {
      "org.opencontainers.image.title" = "krappy";
      "org.opencontainers.image.description" = krappy.meta.description;
      "org.opencontainers.image.version" = krappy.version;
      "org.opencontainers.image.licenses" = "Apache-2.0";
    }
    // (if revision == null then { } else { "org.opencontainers.image.revision" = revision; })
    // (if krappy.meta ? homepage then { "org.opencontainers.image.source" = krappy.meta.homepage; } else { });
  };
}
