# A small package set with the names of nixpkgs that ../package.nix, ../image.nix and ../shell.nix use: Debian's Python
# and libraries made relocatable, wheels as they are, an image writer in the place of dockerTools.streamLayeredImage.
# It is for tests on machines that reach no cache of nixpkgs; an image for use is made with nixpkgs itself.
#
# `vendor` is a folder that ./fetch has filled. The tools of the build are the machine's own (sandbox-paths).
{ vendor }:
let
  system = "x86_64-linux";

  build =
    name: attrs: script:
    derivation (
      {
        inherit name system;
        builder = "/bin/bash";
        args = [
          "-euc"
          script
        ];
        PATH = "/usr/bin:/bin";
        SOURCE_DATE_EPOCH = "1";
        PYTHONDONTWRITEBYTECODE = "1";
        PYTHONHASHSEED = "0";
      }
      // attrs
    );

  lib = {
    concatMap = builtins.concatMap;
    makeLibraryPath = paths: builtins.concatStringsSep ":" (map (path: "${path}/lib") paths);
    removePrefix =
      prefix: text:
      let
        size = builtins.stringLength prefix;
      in
      if builtins.substring 0 size text == prefix then
        builtins.substring size (builtins.stringLength text) text
      else
        text;
    splitString = separator: text: builtins.filter builtins.isString (builtins.split separator text);
    licenses.asl20 = "Apache-2.0";
    platforms.linux = [ system ];
  };

  wheels = "${vendor}/wheels";

  interpreter = build "python3-3.11" { inherit vendor; } ''
    mkdir root && cd root
    for deb in "$vendor"/debs/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x --no-same-owner; done
    mkdir -p $out/bin $out/lib
    cp usr/bin/python3.11 $out/bin/
    ln -s python3.11 $out/bin/python3
    cp -r usr/lib/python3.11 $out/lib/
    find . \( -path ./usr/lib/python3.11 -o -name gconv -o -name audit \) -prune -o -name '*.so*' -type f -print |
      while read -r file; do cp "$file" $out/lib/; done
    find . -name '*.so.*' -type l | while read -r link; do
      target=$(basename "$(readlink "$link")")
      [ ! -e "$out/lib/$target" ] || [ -e "$out/lib/$(basename "$link")" ] || ln -s "$target" "$out/lib/$(basename "$link")"
    done
    cd $out/lib
    rm -rf libnss_* libmemusage* libpcprofile* libstdc++.so.*-gdb.py
    cd python3.11
    rm -rf config-3.11-* ensurepip idlelib lib2to3 pydoc_data test tkinter turtledemo turtle.py
    (cd lib-dynload && rm -f _sqlite3* _tkinter* readline* _curses* _dbm* _gdbm* nis* _test* _ctypes_test* _xx*)
    chmod -R u+w $out
    patchelf --set-interpreter $out/lib/ld-linux-x86-64.so.2 --force-rpath --set-rpath $out/lib $out/bin/python3.11
    $out/bin/python3 -m compileall -q -j 1 --invalidation-mode unchecked-hash -s $out -p / $out/lib/python3.11
  '';

  # What installs the others, unpacked and compiled once.
  tools = build "tools" { } ''
    mkdir $out
    for wheel in ${wheels}/pip-*.whl ${wheels}/setuptools-*.whl ${wheels}/wheel-*.whl ${wheels}/packaging-*.whl; do
      ${interpreter}/bin/python3 -m zipfile -e "$wheel" $out
    done
    ${interpreter}/bin/python3 -m compileall -q -j 1 --invalidation-mode unchecked-hash -s $out -p / $out
  '';

  # Installs a wheel or a source tree without its dependencies: the set has all of them.
  installed =
    name: what: attrs:
    build name attrs ''
      if [ -d ${what} ]; then
        target=./source
        cp -r --no-preserve=mode ${what} source
      else
        target=${what}
      fi
      export HOME=$PWD TMPDIR=$PWD
      export PYTHONPATH=${tools}
      ${interpreter}/bin/python3 -m pip install --quiet --no-index --no-deps --no-build-isolation --no-compile \
        --no-warn-script-location --disable-pip-version-check --root-user-action ignore --target made "$target"
      site=$out/lib/python3.11/site-packages
      mkdir -p $site
      cp -r made/. $site/
      rm -rf $site/bin
      find $site \( -name direct_url.json -o -name RECORD \) -delete
      ${interpreter}/bin/python3 -m compileall -q -j 1 --invalidation-mode unchecked-hash -s $out -p / $site
    '';

  # "trio" -> the wheel trio-0.35.0-….whl, whatever its version
  wheelOf =
    name:
    let
      plain = builtins.replaceStrings [ "-" "." ] [ "_" "_" ] name;
      matches = builtins.filter (file: builtins.match "${plain}-[0-9].*" file != null) (
        builtins.attrNames (builtins.readDir wheels)
      );
    in
    if matches == [ ] then throw "no wheel of ${name} in ${wheels}" else "${wheels}/${builtins.head matches}";

  all = map (file: builtins.head (builtins.match "([A-Za-z0-9_]+)-[0-9].*" file)) (
    builtins.attrNames (builtins.readDir wheels)
  );
  runtime = builtins.filter (
    name:
    !(builtins.elem name [
      "pip"
      "setuptools"
      "wheel"
      "packaging"
    ])
  ) all;

  named = builtins.listToAttrs (
    map (name: {
      name = builtins.replaceStrings [ "_" ] [ "-" ] name;
      value = installed "python3.11-${name}" (wheelOf name) { } // {
        version = builtins.head (builtins.match ".*/[A-Za-z0-9_]+-([0-9][^-]*)-.*" "${wheelOf name}");
      };
    }) all
  );

  pkgs = named // {
    buildPythonPackage =
      attrs:
      installed "python3.11-${attrs.pname}-${attrs.version}" attrs.src { }
      // {
        inherit (attrs) pname version meta;
      };
    callPackage = callPackage;
  };

  python3 = interpreter // {
    inherit pkgs;
    pythonVersion = "3.11";

    # Like a virtual environment: `home` says where the standard library is, and packages are links.
    withPackages =
      choose:
      build "python3-environment" { chosen = choose pkgs ++ map (name: pkgs.${name}) (map dashed runtime); } ''
        mkdir -p $out/bin $out/lib/python3.11/site-packages
        ln -s ${interpreter}/bin/python3 $out/bin/python3
        echo "home = ${interpreter}/bin" > $out/pyvenv.cfg
        for package in $chosen; do
          for each in $package/lib/python3.11/site-packages/*; do
            name=$(basename "$each")
            [ "$name" = __pycache__ ] || ln -s "$each" $out/lib/python3.11/site-packages/
          done
        done
        printf '%s\n' "#!$out/bin/python3" 'from krappy.__main__ import main' 'main()' > $out/bin/krappy
        chmod +x $out/bin/krappy
        $out/bin/python3 -c 'import krappy, krappy.app, krappy.cli.main'
      '';
  };
  dashed = builtins.replaceStrings [ "_" ] [ "-" ];

  writeTextDir =
    path: text:
    build "text" { inherit text; } ''
      mkdir -p "$out/$(dirname ${path})"
      printf '%s' "$text" > "$out/${path}"
    '';

  # A program that writes the image, like nixpkgs', with one layer for each store path.
  dockerTools.streamLayeredImage =
    {
      name,
      tag,
      contents,
      extraCommands,
      config,
    }:
    let
      described = build "${name}-config.json" { config = builtins.toJSON config; } ''printf %s "$config" > $out'';
      parts =
        build "${name}-parts"
          {
            inherit contents extraCommands;
            exportReferencesGraph = [
              "closure"
              described
            ];
          }
          ''
            mkdir root $out
            for each in $contents; do cp -r $each/. root/ && chmod -R u+w root; done
            (cd root && eval "$extraCommands")
            tar --sort=name --mtime=@1 --owner=0 --group=0 --numeric-owner -C root -cf $out/root.tar .
            grep '^/nix/store/' closure | sort -u | grep -v -e '-config.json$' > $out/paths
            cp ${described} $out/config.json
          '';
    in
    build "stream-${name}" { } ''
      printf '#!/bin/sh\nexec python3 -B ${./stream.py} ${parts} ${name}:${tag}\n' > $out
      chmod +x $out
    '';

  callPackage =
    file: overrides:
    let
      function = import file;
      wanted = builtins.intersectAttrs (builtins.functionArgs function) self;
    in
    function (wanted // overrides);

  self = {
    inherit
      lib
      python3
      dockerTools
      writeTextDir
      callPackage
      ;
  };
in
self
