{
  description = "Krappy: an event broker whose topics are also tables";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-25.11";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      each =
        make:
        builtins.listToAttrs (
          map (system: {
            name = system;
            value = make system nixpkgs.legacyPackages.${system};
          }) systems
        );
    in
    {
      packages = each (
        system: pkgs:
        let
          krappy = pkgs.callPackage ./package.nix { };
        in
        {
          inherit krappy;
          default = krappy;
          image = pkgs.callPackage ./image.nix {
            inherit krappy;
            revision = self.rev or self.dirtyRev or null;
          };
        }
      );

      devShells = each (system: pkgs: { default = pkgs.callPackage ./shell.nix { }; });
    };
}
