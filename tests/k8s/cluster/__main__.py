"""`make k8s-test`: the image and the manifests on a real cluster of one node, which is made for it and goes with it.

python -m tests.k8s.cluster                    # all of it
python -m tests.k8s.cluster -k eviction -x     # what pytest takes
python -m tests.k8s.cluster --shell            # a shell inside, with a cluster that runs
"""

from __future__ import annotations

import os
import sys

from tests.k8s.cluster import parts, sandbox

SECONDS = 3600


def main(arguments: list[str]) -> int:
    try:
        parts.check()
        parts.fetch()
    except parts.Missing as reason:
        sys.stderr.write(f"make k8s-test: {reason}\n")
        return 2
    here = str(parts.HERE.relative_to(parts.ROOT))
    command = [sys.executable, "-m", "pytest", "-v", "--durations=0", here, *arguments]
    if arguments == ["--shell"]:
        command = [sys.executable, "-m", "tests.k8s.cluster.shell", os.environ.get("SHELL", "/bin/sh")]
    return sandbox.run(command, parts.CACHE / "runs", seconds=SECONDS)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.exit(status if status >= 0 else 128 - status)
