"""A packed file as a stream that gives no more than it is asked for, whatever it claims to be."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from typing import BinaryIO

from runner.code.errors import BadArchive

_MEMORY = 192 << 20
"""For a decompressor; `xz -9` needs 65 MiB."""
_PIECE = 64 << 10
_TAR_MAGIC_AT = 257
PACKING_ERRORS = (EOFError, OSError, ValueError, lzma.LZMAError, zlib.error)
"""What the decompressors raise for damaged input."""


def unpacked(file: BinaryIO) -> BinaryIO:
    """The tar stream in `file`, which may be plain or packed with gzip, bzip2 or xz. Raises
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
    if start[_TAR_MAGIC_AT:] == b"ustar" or not any(start):
        return file
    raise BadArchive("it is no tar archive, plain or packed with gzip, bzip2 or xz")


class _Xz(io.RawIOBase):
    """lzma.LZMAFile has no limit for the memory that a file may demand."""

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
