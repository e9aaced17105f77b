# Krappy as a Python package: the broker, its clients, the command line and the console; Spark is left out.
#
# What it needs is read from pyproject.toml, so that the two can't drift apart.
{
  lib,
  python3,
  src ? ../.,
}:
let
  project = (builtins.fromTOML (builtins.readFile (src + "/pyproject.toml"))).project;
  inherit (project) version;

  # "pyspark[connect]>=4.0" -> [ "pyspark" "[connect]" "[connect]" ">=4.0" "4.0" ]
  parsed = requirement: builtins.match "([A-Za-z0-9._-]+)((\\[[^]]*])?)(>=([0-9.]+))?.*" requirement;
  named = requirement: builtins.head (parsed requirement);
  extras = lib.concatMap (extra: project.optional-dependencies.${extra} or [ ]) [
    "broker"
    "console"
  ];
  outside = builtins.filter (requirement: named requirement != "krappy") (project.dependencies ++ extras);

  # What the package set has, if it is new enough; else the wheel.
  wheels = python3.pkgs.callPackage ./wheels.nix { };
  package =
    requirement:
    let
      name = named requirement;
      wanted = builtins.elemAt (parsed requirement) 4;
      least = if wanted == null then "0" else wanted;
      found = python3.pkgs.${name} or null;
    in
    if found != null && builtins.compareVersions found.version least >= 0 then
      found
    else
      wheels.${name}
        or (throw "Krappy needs ${requirement}; this package set has ${if found == null then "none" else found.version}");
in
python3.pkgs.buildPythonPackage {
  pname = "krappy";
  inherit version;
  pyproject = true;

  # Only what goes into the wheel, so that a change of a test or a document builds nothing anew.
  src = builtins.path {
    name = "krappy-source";
    path = src;
    filter =
      path: type:
      let
        relative = lib.removePrefix "${toString src}/" (toString path);
        top = builtins.head (lib.splitString "/" relative);
      in
      builtins.elem top [
        "pyproject.toml"
        "README.md"
        "LICENSE"
        "krappy"
        "store"
        "handlers"
      ]
      && baseNameOf path != "__pycache__";
  };

  build-system = [ python3.pkgs.setuptools ];
  dependencies = map package outside;

  # The tests need a network namespace, minutes, and other brokers: `make test` in a checkout, or in the dev shell.
  doCheck = false;
  pythonImportsCheck = [
    "krappy"
    "krappy.app"
    "krappy.cli.main"
  ];

  meta = {
    inherit (project) description;
    license = lib.licenses.asl20;
    mainProgram = "krappy";
    platforms = lib.platforms.linux;
  }
  # Where the source is: what pyproject.toml says, if it does.
  // (if project ? urls.Source then { homepage = project.urls.Source; } else { });
}
