"""The operator's copy of the file that `./dev bundle` makes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec

from fairlead.cli.errors import EXIT_USAGE, CliError

_NAME = re.compile(r"fairlead-node-(?P<version>[0-9][\w.+-]*?)-(?P<arch>[a-z0-9_]+)\.tar")


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    file: Path
    version: str
    arch: str

    @property
    def folder(self) -> str:
        """The top folder in the bundle."""
        return f"fairlead-node-{self.version}"


def read_bundle(file: Path) -> Bundle:
    """Read the bundle and check it against the checksum file next to it, if there is one. Raises
    CliError."""
    named = _NAME.fullmatch(file.name)
    if named is None:
        raise CliError(
            f"--bundle {file}: give a file fairlead-node-VERSION-ARCH.tar from ./dev bundle",
            EXIT_USAGE,
        )
    try:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        beside = file.with_name(f"{file.name}.sha256")
        expected = beside.read_text().split()[:1] if beside.exists() else [digest]
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "its checksum is not text"
        raise CliError(f"--bundle {file}: {why}", EXIT_USAGE) from None
    if expected != [digest]:
        raise CliError(
            f"--bundle {file}: it does not match {beside.name}; copy or build it again",
            EXIT_USAGE,
        )
    return Bundle(file=file, version=named["version"], arch=named["arch"])
