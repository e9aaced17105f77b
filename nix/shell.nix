# What `make test` needs: Python, make, a Java for Spark's tests, a browser for the console's, and what checks k8s/. The
# tests that build and run the image need root, Nix and podman of the machine itself: they skip without.
{
  lib,
  mkShell,
  stdenv,
  python3,
  gnumake,
  jdk17_headless,
  chromium,
  kcat,
  kustomize,
  prometheus,
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
    kustomize
    prometheus
    prometheus.cli # promtool
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
