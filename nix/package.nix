# Krappy as a Python package: the broker, its clients, the command line and the console; Spark is left out.
#
# The dependencies are read from pyproject.toml, so that both are always the same.
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
    "oauth"
  ];
  outside = builtins.filter (requirement: named requirement != "krappy") (project.dependencies ++ extras);

  # A dependency: from the package set if that has it new enough, otherwise the wheel.
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

  # Only files that go into the wheel, so that a change of a test or a document needs no new build.
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
  # The address of the source, if pyproject.toml has it.
  // (if project ? urls.Source then { homepage = project.urls.Source; } else { });
}
