# Packages as names and versions alone, to see what nix/package.nix and nix/shell.nix would take of a package set.
{ versions }: # { starlette = "0.49.1"; … }: what the set has
let
  lib = (import ../../nix/testing { vendor = ./.; }).lib // {
    licenses = {
      asl20 = "Apache-2.0";
      bsd3 = "BSD-3-Clause";
      mit = "MIT";
    };
  };
  packages = builtins.mapAttrs (pname: version: { inherit pname version; }) versions;
  stub = name: { outPath = "/stub/${name}"; };
  pkgs = packages // {
    setuptools = stub "setuptools";
    buildPythonPackage = attrs: attrs;
    callPackage =
      file: _:
      import file {
        inherit lib;
        stdenv = {
          hostPlatform.parsed.cpu.name = "aarch64";
          cc.cc.lib = stub "gcc-lib";
        };
        buildPythonPackage = attrs: attrs;
        fetchPypi = attrs: "${attrs.dist}/${attrs.pname}-${attrs.version}-${attrs.python}-${attrs.abi}-${attrs.platform} ${attrs.hash}";
        autoPatchelfHook = stub "auto-patchelf-hook";
        python.pythonVersion = "3.13";
      };
  };
  python3 = stub "python3" // {
    inherit pkgs;
  };
  package = import ../../nix/package.nix { inherit lib python3; };
  shell = import ../../nix/shell.nix {
    inherit lib python3;
    mkShell = attrs: attrs;
    stdenv.cc.cc.lib = stub "gcc-lib";
    gnumake = stub "gnumake";
    jdk17_headless = stub "jdk17_headless";
    chromium = stub "chromium";
    kcat = stub "kcat";
    kustomize = stub "kustomize";
    prometheus = stub "prometheus" // {
      cli = stub "prometheus-cli";
    };
    gcc = stub "gcc";
    zlib = stub "zlib";
  };
in
{
  inherit (package) version;
  taken = map (each: { inherit (each) pname version; } // (if each ? src then { inherit (each) src; } else { })) package.dependencies;
  shell = {
    packages = map toString shell.packages;
    inherit (shell) LD_LIBRARY_PATH shellHook;
  };
}
