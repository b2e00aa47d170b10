"""The interpreters that a node keeps: brought once from a mirror, and what is told if it fails."""

from __future__ import annotations

import stat
from pathlib import Path

from shim.node.pythons import Pythons
from shim.settings import Settings
from tests.support.python_mirror import mirror

VERSION = "3.12"


def pythons(folder: Path, *, python_downloads: str) -> Pythons:
    return Pythons(
        Settings(
            data=folder / "data",
            socket=folder / "s",
            gid=0,
            runtime=folder,
            python_downloads=python_downloads,
        )
    )


async def test_an_interpreter_is_brought_once_for_all_users(tmp_path: Path) -> None:
    served = mirror(tmp_path / "mirror", "3.12.4")
    node = pythons(tmp_path, python_downloads=str(served))
    assert await node.bring(VERSION) is None
    (program,) = node.folder.glob("cpython-3.12.4-*/bin/python3.12")
    assert stat.S_IMODE(node.folder.stat().st_mode) == 0o755
    assert stat.S_IMODE(program.stat().st_mode) & 0o005 == 0o005

    served.unlink()
    again = pythons(tmp_path, python_downloads=str(served))
    assert await again.bring(VERSION) is None
    assert await again.bring("3.12.4") is None
    assert await again.bring("3.12.5") is not None


async def test_what_cannot_be_brought_is_told_and_not_tried_at_once_again(tmp_path: Path) -> None:
    served = mirror(tmp_path / "mirror", "3.12.4")
    node = pythons(tmp_path, python_downloads=str(served))
    for archive in served.parent.glob("*.tar.gz"):
        archive.unlink()
    first = await node.bring(VERSION)
    assert first is not None
    assert "3.12.4" in first
    mirror(tmp_path / "mirror", "3.12.4")
    assert await node.bring(VERSION) == first
