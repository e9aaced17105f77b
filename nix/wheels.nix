# Wheels from PyPI, by name, of packages that a package set lacks, or has in a version too old for Krappy.
{
  lib,
  stdenv,
  buildPythonPackage,
  fetchPypi,
  autoPatchelfHook,
  python,
}:
let
  tag = "cp${builtins.replaceStrings [ "." ] [ "" ] python.pythonVersion}";
  arch = stdenv.hostPlatform.parsed.cpu.name;

  wheel =
    {
      pname,
      version,
      description,
      license,
      platform ? null, # null: pure Python, the same for all platforms
      module ? pname, # what it is imported as
      hashes,
    }:
    let
      which = if platform == null then "any" else "${tag}-${arch}";
    in
    buildPythonPackage {
      inherit pname version;
      format = "wheel";
      src = fetchPypi {
        inherit pname version;
        format = "wheel";
        dist = if platform == null then "py3" else tag;
        python = if platform == null then "py3" else tag;
        abi = if platform == null then "none" else tag;
        platform = if platform == null then "any" else platform;
        hash = hashes.${which} or (throw "${pname} ${version}: no hash for ${which}");
      };
      nativeBuildInputs = if platform == null then [ ] else [ autoPatchelfHook ];
      buildInputs = if platform == null then [ ] else [ stdenv.cc.cc.lib ];
      pythonImportsCheck = [ module ];
      meta = { inherit description license; };
    };
in
{
  rocksdict = wheel {
    pname = "rocksdict";
    version = "0.3.29";
    description = "Python bindings of RocksDB";
    license = lib.licenses.mit;
    platform = "manylinux_2_28_${arch}";
    hashes = {
      cp311-x86_64 = "sha256-Y+u2DN51qHLCS5aDepo3PGjbIpAWqShBMu8G4O6C1Hc=";
      cp311-aarch64 = "sha256-9ZXVQ4SQRQ4sb3l9pJEAXnfIYvRByixO1zRttkh6KYM=";
      cp312-x86_64 = "sha256-NtM22deW0Ikjutst93g2VnbNWma0di/8LQuVLfyosnY=";
      cp312-aarch64 = "sha256-vsl6y5rJeX8m7NddJaNSPFcZB5YMOBydyrYGl5rJwcI=";
      cp313-x86_64 = "sha256-qfFYlmSxONkt+9cJcUUJwznbrLCW3HCLXNEkX4I+3lg=";
      cp313-aarch64 = "sha256-soZDP5/719vMJ08zH34LpVVveX/Zs7ytRtK0LEBCBm0=";
    };
  };

  msgspec = wheel {
    pname = "msgspec";
    version = "0.22.0";
    description = "Types, JSON and MessagePack in C";
    license = lib.licenses.bsd3;
    platform = "manylinux2014_${arch}.manylinux_2_17_${arch}.manylinux_2_28_${arch}";
    hashes = {
      cp311-x86_64 = "sha256-pts4BrO3bKeAZCVerG+hAaimT+b2mNgPuvgf36ISF9Q=";
      cp311-aarch64 = "sha256-uWIADhHdNPshClosV6imKy2Ss4HIyzsFwHWoPjj41kU=";
      cp312-x86_64 = "sha256-mcQBhhxbs6V/fWQj6n7UNSzVeqPwT0++nz4+RWShDwg=";
      cp312-aarch64 = "sha256-taFptbA/Dyx6KWwAJkfbHat10s1QG8o04ytxyrAmG1Y=";
      cp313-x86_64 = "sha256-xsMQ74Pn4pGwGmMpiCj4SDSLuZ6EoQmMSzkjwFZ00DI=";
      cp313-aarch64 = "sha256-Ynv9/lpLPZFrM2CzD0zd7uOghPVlk+M1J8aHL6gyL/k=";
    };
  };

  pyjwt = wheel {
    pname = "pyjwt";
    version = "2.15.1";
    description = "JSON Web Tokens";
    license = lib.licenses.mit;
    module = "jwt";
    hashes.any = "sha256-QtWdYx93aKECimTH/1gam/dRmATa+R/FtsVuMO7F4ZM=";
  };

  starlette = wheel {
    pname = "starlette";
    version = "1.10.0";
    description = "Routes, requests and static files over ASGI";
    license = lib.licenses.bsd3;
    hashes.any = "sha256-R4wKs7TO1ugnGYScEY+kBvAnijSZwaiYzRXNMb3DjOQ=";
  };
}
