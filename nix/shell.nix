# The shell for `make test`: Python, make, a Java for Spark's tests, a browser for the console's, tools to check k8s/.
# The tests that build and run the image need the machine's own root, Nix and podman; without these they are skipped.
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

  # `make setup` installs wheels into .venv, whose libraries need these, but don't find them in the Nix store.
  LD_LIBRARY_PATH = lib.makeLibraryPath [
    stdenv.cc.cc.lib
    zlib
  ];

  shellHook = ''
    export PYTHON=${python3}/bin/python3
  '';
}
