"""CRC-32C, the checksum of a RecordBatch: `crc32c(data, start=0)`, in hardware and without the GIL.

It is that of the package crc32c. The package itself is not imported, only its module in C: for a command line of its
own it imports argparse, and for its version importlib.metadata, which imports zipfile, csv and email. That took 2 MB of
an idle broker's memory, and as much time as to import everything else of the record batches.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crc32c import crc32c as crc32c


def _of_extension() -> Callable[..., int]:
    package = PathFinder.find_spec("crc32c")
    spec = package and PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if spec is None or spec.loader is None:
        from crc32c import crc32c

        return crc32c
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., int] = module.crc32c
    return found


if not TYPE_CHECKING:
    crc32c = _of_extension()
