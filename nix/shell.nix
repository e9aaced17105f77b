# What `make test` needs, all of it: Python, make, a Java for Spark's tests, a browser for the console's.
{
  lib,
  mkShell,
  stdenv,
  python3,
  gnumake,
  jdk17_headless,
  chromium,
  kcat,
  gcc,
  zlib,
}:
mkShell {
  packages = [
    python3
    gnumake
    jdk17_headless
    chromium
    kcat
    gcc
  ];

  # `make setup` fills .venv with wheels, whose libraries look for these where other systems have them.
  LD_LIBRARY_PATH = lib.makeLibraryPath [
    stdenv.cc.cc.lib
    zlib
  ];

  shellHook = ''
    export PYTHON=${python3}/bin/python3
  '';
}
