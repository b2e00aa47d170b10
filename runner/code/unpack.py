"""A blob that is an archive, put into a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from runner.code.archive import TarReader
from runner.code.decompression import unpacked
from runner.code.limits import Limits
from runner.code.tree import TreeWriter


def unpack(
    blob: Path,
    target: Path,
    *,
    owner: tuple[int, int] | None = None,
    replace: bool = False,
    limits: Limits | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Blocking; `check` is called often and may raise to end it. What was written before a refusal
    stays. Raises BadArchive, OSError."""
    with blob.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        reader = TarReader(unpacked(file), size, limits or Limits())
        root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        writer = TreeWriter(root, owner=owner, replace=replace)
        try:
            for entry in reader:
                check()
                writer.write(entry, reader.pieces())
        finally:
            writer.close()
            os.close(root)
