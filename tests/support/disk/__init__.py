"""A folder of a daemon's on a disk that breaks when a test says so (see `failing.c`)."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SOURCE = Path(__file__).with_name("failing.c")


class FailingDisk:
    """`env` is for the daemon; `folder` need not be there yet."""

    def __init__(self, place: Path, folder: Path) -> None:
        place.mkdir(parents=True)
        library = place / "failing.so"
        flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
        subprocess.run(["gcc", *flags, "-o", library, _SOURCE, "-ldl"], check=True)
        self._state = place / "state"
        self.env = {
            "LD_PRELOAD": str(library),
            "FAIRLEAD_DISK_FOLDER": f"{folder}/",
            "FAIRLEAD_DISK_STATE": str(self._state),
        }

    @contextmanager
    def broken(self, number: int, only: str = "") -> Iterator[str]:
        """From now on, until the end of the block. Gives the error's words."""
        assert number in errno.errorcode
        new = self._state.with_name("state.new")
        new.write_text(f"{number} {only}")
        new.rename(self._state)
        try:
            yield os.strerror(number)
        finally:
            self._state.unlink()
