{
  description = "A stand-in for nixpkgs, to build the image where nixpkgs can't be had";

  inputs.vendor = {
    url = "path:./vendor";
    flake = false;
  };

  outputs = { self, vendor }: { legacyPackages.x86_64-linux = import ./. { inherit vendor; }; };
}
