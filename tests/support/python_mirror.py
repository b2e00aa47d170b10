"""A mirror of Python interpreters as uv expects it, with one archive that a test packs itself."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sys
import tarfile
from pathlib import Path

_MACHINE = platform.machine()
HERE = ".".join(platform.python_version_tuple()[:2])
_BIG_AND_UNUSED = ("test", "config-", "dist-packages", "site-packages", "__pycache__", "idlelib")


def mirror(folder: Path, version: str) -> Path:
    """Make the mirror, with an interpreter of this version that only looks like one. Return the
    JSON that lists it."""
    short = ".".join(version.split(".")[:2])
    header = b"# system configuration generated and used by the sysconfig module\n"
    files = {
        f"python/bin/python{short}": b"#!/bin/sh\necho not a real Python\n",
        f"python/lib/python{short}/os.py": b"",
        f"python/lib/python{short}/_sysconfigdata__linux_{_MACHINE}-linux-gnu.py": (
            header + b"build_time_vars = {}\n"
        ),
    }
    archive = _archive(folder, version)
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = 0o755, len(content)
            tar.addfile(entry, io.BytesIO(content))
    return _listing(archive, version)


def mirror_of_this_python(folder: Path) -> Path:
    """Make the mirror, with this machine's own Python as the version HERE.0. Return the JSON that
    lists it."""
    archive = _archive(folder, f"{HERE}.0")
    program = Path(sys.base_prefix) / "bin" / f"python{HERE}"
    library = Path(sys.base_prefix) / "lib" / f"python{HERE}"
    with tarfile.open(archive, "w:gz", compresslevel=1, dereference=True) as tar:
        tar.add(program, f"python/bin/{program.name}")
        tar.add(library, f"python/lib/{library.name}", filter=_needed)
    return _listing(archive, f"{HERE}.0")


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = entry.name.rpartition("/")[2]
    return None if name.startswith(_BIG_AND_UNUSED) else entry


def _archive(folder: Path, version: str) -> Path:
    folder.mkdir(exist_ok=True)
    return folder / f"cpython-{version}.tar.gz"


def _listing(archive: Path, version: str) -> Path:
    major, minor, patch = map(int, version.split("."))
    listed = {
        f"cpython-{version}-linux-{_MACHINE}-gnu": {
            "name": "cpython",
            "arch": {"family": _MACHINE, "variant": None},
            "os": "linux",
            "libc": "gnu",
            "major": major,
            "minor": minor,
            "patch": patch,
            "prerelease": "",
            "url": archive.as_uri(),
            "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
            "variant": None,
            "build": "20240101",
        }
    }
    listing = archive.with_name("pythons.json")
    listing.write_text(json.dumps(listed))
    return listing
