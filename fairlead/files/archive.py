"""Archives are made in the same way every time, of parts that do not depend on each other.

So unchanged content is not sent again, and of changed content only the parts with changed files.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import posixpath
import stat
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from fairlead.configuration.convert import ConfigurationError
from fairlead.wire.blobs import Part

_LEVEL = 6
MIN_PART_BYTES, MAX_PART_BYTES = 64 << 10, 256 << 10
"""A part has so many bytes of whole files, before they are packed; a larger file is a part of its
own."""
_ENDS_A_PART = 8
"""About one file in this number ends a part, chosen by its name: then parts around a file that came
or went stay as they were."""


def write(
    path: Path, members: Iterable[tuple[str, Path]], field: str
) -> tuple[str, tuple[Part, ...]]:
    """Write the archive of these files, by their names in it; return its sha256 and its parts.
    Raises ConfigurationError for this field."""
    with path.open("wb") as file:
        parts = _Parts(file)
        with tarfile.open(fileobj=parts, mode="w", format=tarfile.PAX_FORMAT) as packed:
            for name, source in members:
                parts.begin(name)
                _add(packed, name, source, field)
            parts.end()  # the padding depends on all files, so it is a part of its own
        parts.end()
    with path.open("rb") as made:
        digest = hashlib.file_digest(made, "sha256").hexdigest()
    return digest, tuple(parts.made)


class _Parts(io.RawIOBase):
    """A packed file of parts, each of which is a gzip member: together they are one gzip file.

    Whole files of the archive make a part, so the same files are the same bytes in each archive.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.made: list[Part] = []
        self._file = _Hashed(file)
        self._packed: gzip.GzipFile | None = None
        self._size = 0
        self._written = 0
        self._may_end = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def begin(self, name: str) -> None:
        """The next member of the archive is this."""
        ended_by_name, self._may_end = self._may_end, _ends_a_part(name)
        if self._size >= MAX_PART_BYTES or (ended_by_name and self._size >= MIN_PART_BYTES):
            self.end()

    def write(self, data: Any) -> int:
        if self._packed is None:
            self._packed = _gzip(self._file)
        self._size += len(data)
        self._written += len(data)
        return self._packed.write(data)

    def end(self) -> None:
        """End the part."""
        if self._packed is not None:
            self._packed.close()
            self._packed = None
            self.made.append(self._file.cut())
            self._size = 0


def _ends_a_part(name: str) -> bool:
    # The same in each process, as Python's own hash of a string is not (PYTHONHASHSEED).
    return zlib.crc32(os.fsencode(name)) % _ENDS_A_PART == 0


class _Hashed(io.RawIOBase):
    """Names what is written to a file, between two cuts."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash, self._size = hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._hash.update(data)
        self._size += len(data)
        return self._file.write(data)

    def cut(self) -> Part:
        part = Part(sha256=self._hash.hexdigest(), size=self._size)
        self._hash, self._size = hashlib.sha256(), 0
        return part


def _gzip(file: _Hashed) -> gzip.GzipFile:
    """Return a gzip file without time and name, so that the same content makes the same bytes."""
    return gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=_LEVEL, mtime=0)


def _add(archive: tarfile.TarFile, name: str, source: Path, field: str) -> None:
    info = member(name, source, field)
    try:
        if not info.isreg():
            archive.addfile(info)
            return
        with source.open("rb") as content:
            # The file may have changed since lstat(2), and the header must say what follows.
            info.size = os.fstat(content.fileno()).st_size
            archive.addfile(info, content)
    except OSError as error:
        raise ConfigurationError(
            field, f"{source} can't be read: {error.strerror or error}"
        ) from None


def member(name: str, source: Path, field: str) -> tarfile.TarInfo:
    """Return the archive's entry for a file. Raises ConfigurationError for what cannot be sent."""
    try:
        found = source.lstat()
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = stat.S_IMODE(found.st_mode) & 0o777, int(found.st_mtime)
        if stat.S_ISLNK(found.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(source)
        elif stat.S_ISDIR(found.st_mode):
            info.type = tarfile.DIRTYPE
        elif not stat.S_ISREG(found.st_mode):
            raise ConfigurationError(field, f"{source} is neither a file nor a folder nor a link")
    # A file may go between the listing and its turn, as an editor's temporary one does.
    except OSError as error:
        raise ConfigurationError(field, f"{source} can't be read: {error.strerror}") from None
    if info.issym() and _leaves(name, info.linkname):
        raise ConfigurationError(
            field, f"{source} is a link to outside of what is sent; leave it out"
        )
    return info


def _leaves(name: str, target: str) -> bool:
    """Return whether a link leads out of the folder.

    The node accepts only links that go up first, and not beyond the folder that is sent.
    """
    steps = [step for step in target.split("/") if step not in ("", ".")]
    ups = next((at for at, step in enumerate(steps) if step != ".."), len(steps))
    depth = len(posixpath.normpath(name).split("/"))
    return target.startswith("/") or ups >= depth or ".." in steps[ups:]
