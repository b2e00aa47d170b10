"""The reader of tar streams yields only harmless entries, or refuses the whole archive.

The standard library's tarfile decodes the headers. The walk is this module's own: tarfile keeps
extended headers of any size in memory, follows them, and leaves the check of names to its caller.
Every promise about names is made here: parts are relative, non-empty, never `..`. A packed stream
yields no more than was asked for.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from enum import Enum, auto
from typing import BinaryIO

import msgspec

from runner.code.errors import ArchiveLimits, BadArchive

_MEMORY = 192 << 20
"""The memory of a decompressor; `xz -9` needs 65 MiB."""
_PIECE = 64 << 10
_TAR_MAGIC_AT = 257
PACKING_ERRORS = (EOFError, OSError, ValueError, lzma.LZMAError, zlib.error)
"""The decompressors' errors for damaged input."""


def unpacked(file: BinaryIO) -> BinaryIO:
    """Return the tar stream in `file`, which may be plain or packed with gzip, bzip2 or xz. Raises
    BadArchive for anything else."""
    start = file.read(_TAR_MAGIC_AT + 5)
    file.seek(0)
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file, mode="rb")  # type: ignore[return-value]
    if start.startswith(b"BZh"):
        return bz2.BZ2File(file)  # type: ignore[return-value]
    if start.startswith(b"\xfd7zXZ\0"):
        return io.BufferedReader(_Xz(file), _PIECE)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        raise BadArchive("zstd archives are not supported: use gzip, bzip2 or xz")
    # Zeros alone are an empty archive.
    if start[_TAR_MAGIC_AT:] == b"ustar" or not any(start):
        return file
    raise BadArchive("it is not a tar archive, plain or packed with gzip, bzip2 or xz")


class _Xz(io.RawIOBase):
    """lzma.LZMAFile with a limit for the memory that a file may request."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decompressor = lzma.LZMADecompressor(memlimit=_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._decompressor.eof:
            fresh = b""
            if self._decompressor.needs_input:
                fresh = self._file.read(_PIECE)
                if not fresh:
                    raise EOFError("the xz stream ends early")
            data = self._decompressor.decompress(fresh, len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)
        return 0


BLOCK = 512
PIECE = 1 << 20
_PERMISSIONS = 0o777
_MAX_SECONDS = 1 << 40
_FILES = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE})
_EXTENDED = frozenset({tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE})
_REFUSED = {
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}
Parts = tuple[bytes, ...]


class Kind(Enum):
    FILE = auto()
    FOLDER = auto()
    SYMLINK = auto()
    HARDLINK = auto()


class Entry(msgspec.Struct, frozen=True):
    """One entry. `mode` has no setuid, setgid or sticky bit. `target` of a symlink stays within the
    archive's root, and `source` of a hard link is an entry's path."""

    parts: Parts
    kind: Kind
    mode: int
    mtime: int
    size: int = 0
    target: bytes = b""
    source: Parts = ()

    @property
    def name(self) -> str:
        return shown(b"/".join(self.parts))


class _Extension(msgspec.Struct):
    """The extended headers of the next entry."""

    path: bytes | None = None
    link: bytes | None = None
    size: int | None = None
    mtime: float | None = None


class TarReader:
    """Iterate once; `pieces` yields the content of the last entry. Raises BadArchive."""

    def __init__(self, stream: BinaryIO, packed_size: int, limits: ArchiveLimits) -> None:
        self._stream = stream
        self._limits = limits
        # Zeros pack a thousandfold with gzip, and more with bzip2: a small upload could fill the
        # disk.
        self._most = min(limits.size, limits.ratio_free + limits.ratio * packed_size)
        self._taken = 0
        self._count = 0
        self._left = 0
        self._padding = 0

    def __iter__(self) -> Iterator[Entry]:
        extension = _Extension()
        while (header := self._header()) is not None:
            self._count += 1
            if self._count > self._limits.entries:
                raise BadArchive(f"it has more than {self._limits.entries} entries")
            if self._extend(header, extension):
                continue
            entry = self._entry(header, extension)
            extension = _Extension()
            if entry is not None:
                yield entry
            self._skip()

    def pieces(self) -> Iterator[bytes]:
        while self._left:
            piece = self._take(min(self._left, PIECE))
            self._left -= len(piece)
            yield piece

    def _skip(self) -> None:
        for _ in self.pieces():
            pass
        self._take(self._padding)
        self._padding = 0

    def _header(self) -> tarfile.TarInfo | None:
        block = self._take(BLOCK)
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            return None
        except (tarfile.TarError, ValueError) as error:
            raise BadArchive(f"a header is damaged: {error}") from None
        if header.size < 0:
            raise BadArchive(f"{shown(_raw(header.name))} has a negative size")
        return header

    def _extend(self, header: tarfile.TarInfo, extension: _Extension) -> bool:
        """Read the header; return whether it was an extended one."""
        if header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            name = self._small(header).rstrip(b"\0")
            if header.type == tarfile.GNUTYPE_LONGNAME:
                extension.path = name
            else:
                extension.link = name
        elif header.type in _EXTENDED or header.type == tarfile.XGLTYPE:
            records = _records(self._small(header))
            if any(key.startswith(b"GNU.sparse") for key in records):
                raise BadArchive("a sparse file is refused")
            # A global header, in which git archive names the commit, says nothing about an entry.
            if header.type in _EXTENDED:
                _note(records, extension)
        else:
            return False
        return True

    def _small(self, header: tarfile.TarInfo) -> bytes:
        if header.size > self._limits.header:
            raise BadArchive(f"an extended header has more than {self._limits.header} bytes")
        content = self._take(header.size)
        self._take(-header.size % BLOCK)
        return content

    def _entry(self, header: tarfile.TarInfo, extension: _Extension) -> Entry | None:
        raw = _raw(header.name) if extension.path is None else extension.path
        link = _raw(header.linkname) if extension.link is None else extension.link
        size = header.size if extension.size is None else extension.size
        if header.type in _REFUSED:
            raise BadArchive(f"{shown(raw)} is {_REFUSED[header.type]}, which is refused")
        parts = self._parts(raw, "is")
        mtime = header.mtime if extension.mtime is None else extension.mtime
        # A pax header may say any number, also nan, and times that no file system has.
        when = int(mtime) if 0 <= mtime < _MAX_SECONDS else 0
        mode = header.mode & _PERMISSIONS
        if header.type in _FILES:
            self._expect_content(raw, size)
            return Entry(self._named(parts, raw), Kind.FILE, mode, when, size=size)
        if size:
            raise BadArchive(f"{shown(raw)} has content but is not a file")
        if header.type == tarfile.DIRTYPE:
            return Entry(parts, Kind.FOLDER, mode, when) if parts else None
        named = self._named(parts, raw)
        if header.type == tarfile.SYMTYPE:
            return Entry(named, Kind.SYMLINK, mode, when, target=self._target(named, link))
        if header.type == tarfile.LNKTYPE:
            source = self._named(self._parts(link, f"{shown(raw)} is a link to"), link)
            return Entry(named, Kind.HARDLINK, mode, when, source=source)
        raise BadArchive(f"{shown(raw)} is of the unknown type {header.type!r}")

    def _expect_content(self, raw: bytes, size: int) -> None:
        if size > self._most - self._taken:
            raise BadArchive(f"{shown(raw)} would unpack to more than {self._most} bytes")
        self._left, self._padding = size, -size % BLOCK

    def _parts(self, raw: bytes, verb: str) -> Parts:
        text = shown(raw)
        where = f"{text} {verb}" if verb == "is" else f"{verb} {text}, which is"
        if raw.startswith(b"/"):
            raise BadArchive(f"{where} an absolute path")
        parts = tuple(part for part in raw.split(b"/") if part not in (b"", b"."))
        if b".." in parts:
            raise BadArchive(f"{where} a path that leaves the archive (..)")
        self._check_length(raw, parts)
        return parts

    def _check_length(self, raw: bytes, parts: Parts) -> None:
        limits = self._limits
        if b"\0" in raw:
            raise BadArchive(f"{shown(raw)} contains a NUL character")
        if len(raw) > limits.path or any(len(part) > limits.name for part in parts):
            raise BadArchive(f"{shown(raw)} is a name that is too long")
        if len(parts) > limits.depth:
            raise BadArchive(f"{shown(raw)} is nested deeper than {limits.depth} folders")

    def _named(self, parts: Parts, raw: bytes) -> Parts:
        if not parts:
            raise BadArchive(f"{shown(raw)} is not a name")
        return parts

    def _target(self, parts: Parts, target: bytes) -> bytes:
        """Check a link's target. `..` may only come first: after a name, which may be a link, it
        could lead anywhere.

        Every link further on is one that was checked too.
        """
        what = f"{shown(b'/'.join(parts))} is a link to {shown(target)}"
        steps = [step for step in target.split(b"/") if step not in (b"", b".")]
        if not target or target.startswith(b"/"):
            raise BadArchive(f"{what}, which is outside the archive")
        self._check_length(target, tuple(steps))
        ups = 0
        while ups < len(steps) and steps[ups] == b"..":
            ups += 1
        if ups >= len(parts) or b".." in steps[ups:]:
            raise BadArchive(f"{what}, which is outside the archive")
        return target

    def _take(self, count: int) -> bytes:
        if self._taken + count > self._most:
            raise BadArchive(f"it would unpack to more than {self._most} bytes")
        content = bytearray()
        try:
            while len(content) < count and (piece := self._stream.read(count - len(content))):
                content += piece
        except PACKING_ERRORS as error:
            raise BadArchive(f"it is damaged: {error}") from None
        # An xz stream names the size of its own dictionary, up to 4 GiB (xz(1)).
        except MemoryError:
            raise BadArchive("it needs too much memory to unpack") from None
        if len(content) < count:
            raise BadArchive("it ends early")
        self._taken += count
        return bytes(content)


def shown(raw: bytes) -> str:
    """Return the name for a message: printable, and of limited length."""
    text = raw[:120].decode("utf-8", "backslashreplace")
    return repr("".join(c if c.isprintable() else "?" for c in text))


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _records(content: bytes) -> dict[bytes, bytes]:
    """Return the records `LENGTH KEY=VALUE\\n`, as POSIX defines them for pax."""
    records: dict[bytes, bytes] = {}
    while content:
        digits, space, _ = content[:12].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = content[len(digits) + 1 : length]
        key, equals, value = record.partition(b"=")
        if not space or not equals or length > len(content) or not record.endswith(b"\n"):
            raise BadArchive("an extended header is damaged")
        records[key] = value[:-1]
        content = content[length:]
    return records


def _note(records: dict[bytes, bytes], extension: _Extension) -> None:
    extension.path = records.get(b"path", extension.path)
    extension.link = records.get(b"linkpath", extension.link)
    try:
        if b"size" in records:
            extension.size = int(records[b"size"])
        if b"mtime" in records:
            extension.mtime = float(records[b"mtime"])
    except ValueError:
        raise BadArchive("an extended header is damaged") from None
    if extension.size is not None and extension.size < 0:
        raise BadArchive("an entry has a negative size")
