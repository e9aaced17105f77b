# rocksdict for a package set that has none: the wheel, which carries RocksDB.
{
  lib,
  stdenv,
  buildPythonPackage,
  fetchPypi,
  autoPatchelfHook,
  python,
}:
let
  version = "0.3.29";
  tag = "cp${lib.replaceStrings [ "." ] [ "" ] python.pythonVersion}";
  arch = stdenv.hostPlatform.parsed.cpu.name;
  hashes = {
    cp311-x86_64 = "sha256-Y+u2DN51qHLCS5aDepo3PGjbIpAWqShBMu8G4O6C1Hc=";
    cp311-aarch64 = "sha256-9ZXVQ4SQRQ4sb3l9pJEAXnfIYvRByixO1zRttkh6KYM=";
    cp312-x86_64 = "sha256-NtM22deW0Ikjutst93g2VnbNWma0di/8LQuVLfyosnY=";
    cp312-aarch64 = "sha256-vsl6y5rJeX8m7NddJaNSPFcZB5YMOBydyrYGl5rJwcI=";
    cp313-x86_64 = "sha256-qfFYlmSxONkt+9cJcUUJwznbrLCW3HCLXNEkX4I+3lg=";
    cp313-aarch64 = "sha256-soZDP5/719vMJ08zH34LpVVveX/Zs7ytRtK0LEBCBm0=";
  };
in
buildPythonPackage {
  pname = "rocksdict";
  inherit version;
  format = "wheel";
  src = fetchPypi {
    pname = "rocksdict";
    inherit version;
    format = "wheel";
    dist = tag;
    python = tag;
    abi = tag;
    platform = "manylinux_2_28_${arch}";
    hash = hashes."${tag}-${arch}" or (throw "rocksdict ${version}: no hash for ${tag} on ${arch}");
  };
  nativeBuildInputs = [ autoPatchelfHook ];
  buildInputs = [ stdenv.cc.cc.lib ];
  pythonImportsCheck = [ "rocksdict" ];
  meta = {
    description = "Python bindings of RocksDB";
    homepage = "https://github.com/rocksdict/RocksDict";
    license = lib.licenses.mit;
  };
}
