"""Archives that try something, made in code: what each tries, and what it must be refused with."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable
from typing import Any

Member = tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]


def member(name: str, type: bytes = tarfile.REGTYPE, **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = type
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def file(name: str, content: bytes = b"x", **fields: Any) -> Member:
    return member(name, size=len(content), **fields), content


def link(name: str, target: str) -> Member:
    return member(name, tarfile.SYMTYPE, linkname=target)


def hard(name: str, target: str) -> Member:
    return member(name, tarfile.LNKTYPE, linkname=target)


def folder(name: str) -> Member:
    return member(name, tarfile.DIRTYPE, mode=0o755)


def tar(
    *members: Member, format: int = tarfile.PAX_FORMAT, pax: dict[str, str] | None = None
) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=format, pax_headers=pax or {}) as archive:
        for one in members:
            info, content = one if isinstance(one, tuple) else (one, b"")
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def raw(info: tarfile.TarInfo, content: bytes = b"", *, end: bool = True) -> bytes:
    """One header that may lie about its content."""
    padding = b"\0" * (-len(content) % 512)
    header = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    return header + content + padding + (b"\0" * 1024 if end else b"")


def extended(type: bytes, content: bytes, *rest: bytes) -> bytes:
    info = member("extended", type, size=len(content))
    return raw(info, content, end=False) + b"".join(rest)


def records(**values: str) -> bytes:
    made = b""
    for key, value in values.items():
        body = f" {key.replace('__', '.')}={value}\n".encode()
        length = len(body) + 1
        while len(str(length)) + len(body) != length:
            length = len(str(length)) + len(body)
        made += str(length).encode() + body
    return made


def with_negative_size() -> bytes:
    header = bytearray(raw(member("negative"), end=True))
    header[124:136] = b"\xff" * 12
    return with_checksum(header)


def with_checksum(archive: bytearray) -> bytes:
    archive[148:156] = b" " * 8
    archive[148:156] = b"%06o\0 " % sum(archive[:512])
    return bytes(archive)


def with_type(type: bytes) -> bytes:
    header = bytearray(raw(member("odd")))
    header[156:157] = type
    return with_checksum(header)


def with_content(type: bytes) -> bytes:
    info = member("loaded", type, size=4, linkname="x")
    return raw(info, b"data")


def many(count: int) -> bytes:
    return tar(*(file(f"f{number}", b"") for number in range(count)))


def nested_gzip() -> bytes:
    return gzip.compress(gzip.compress(gzip.compress(tar(file("deep")))))


def xz_with_a_huge_dictionary() -> bytes:
    """The block's header says how much memory is needed: 38 stands for 2 GiB."""
    packed = bytearray(lzma.compress(tar(file("f"))))
    end = 12 + (packed[12] + 1) * 4
    packed[packed.index(b"\x21\x01", 12, end) + 2] = 38
    packed[end - 4 : end] = zlib.crc32(packed[12 : end - 4]).to_bytes(4, "little")
    return bytes(packed)


_LONG = "n" * 300
_ZEROS = bytes(8 << 20)

# name → (archive, words of the refusal)
NAMES: dict[str, tuple[Callable[[], bytes], str]] = {
    "an absolute file": (lambda: tar(file("/etc/passwd")), "absolute"),
    "an absolute folder": (lambda: tar(folder("/tmp/made")), "absolute"),
    "an absolute link": (lambda: tar(link("/tmp/l", "x")), "absolute"),
    "many slashes": (lambda: tar(file("///outside")), "absolute"),
    "an absolute name in a pax header": (
        lambda: extended(b"x", records(path="/outside"), raw(member("inside"))),
        "absolute",
    ),
    "an absolute GNU long name": (
        lambda: extended(b"L", b"/outside\0", raw(member("inside"))),
        "absolute",
    ),
    "a parent": (lambda: tar(file("../outside")), "leaves the archive"),
    "a parent in the middle": (lambda: tar(file("a/../../outside")), "leaves the archive"),
    "a parent that stays inside": (lambda: tar(file("a/../inside")), "leaves the archive"),
    "a parent at the end": (lambda: tar(folder("a/..")), "leaves the archive"),
    "a parent behind a dot": (lambda: tar(file("./../outside")), "leaves the archive"),
    "a parent behind slashes": (lambda: tar(file("a//..//..//outside")), "leaves the archive"),
    "a parent as a folder": (lambda: tar(folder("..")), "leaves the archive"),
    "a parent in a pax header": (
        lambda: extended(b"x", records(path="../outside"), raw(member("inside"))),
        "leaves the archive",
    ),
    "a parent in a GNU long name": (
        lambda: extended(b"L", b"a/../../outside\0", raw(member("inside"))),
        "leaves the archive",
    ),
    "no name": (lambda: raw(member("")), "not a name"),
    "a dot as a file": (lambda: tar(file(".")), "not a name"),
    "a dot as a link": (lambda: tar(link(".", "x")), "not a name"),
    "a NUL in a pax name": (
        lambda: extended(b"x", records(path="a\0b"), raw(member("inside"))),
        "NUL",
    ),
    "a long name": (lambda: tar(file(_LONG)), "too long"),
    "a long folder": (lambda: tar(file(f"{_LONG}/f")), "too long"),
    "a long path": (lambda: tar(file("/".join(["d" * 200] * 25))), "too long"),
    "a deep path": (lambda: tar(file("/".join(["d"] * 70))), "nested deeper"),
    "a deep folder": (lambda: tar(folder("/".join(["d"] * 1000))), "nested deeper"),
}

LINKS: dict[str, tuple[Callable[[], bytes], str]] = {
    "to an absolute path": (lambda: tar(link("l", "/etc/passwd")), "outside"),
    "to the root": (lambda: tar(link("l", "/")), "outside"),
    "to the parent": (lambda: tar(link("l", "..")), "outside"),
    "to a parent's file": (lambda: tar(link("a/l", "../../outside")), "outside"),
    "up after down": (lambda: tar(link("l", "a/../../outside")), "outside"),
    "up after down, counted as inside": (lambda: tar(link("a/b/l", "x/../y")), "outside"),
    "up behind a dot": (lambda: tar(link("l", "./../outside")), "outside"),
    "to nothing": (lambda: tar(link("l", "")), "outside"),
    "to a long name": (lambda: tar(link("l", _LONG)), "too long"),
    "in a pax header": (
        lambda: extended(b"x", records(linkpath="/etc"), raw(member("l", tarfile.SYMTYPE))),
        "outside",
    ),
    "in a GNU long link": (
        lambda: extended(b"K", b"../../etc\0", raw(member("l", tarfile.SYMTYPE))),
        "outside",
    ),
    "in two steps": (
        lambda: tar(folder("d"), link("d/up", ".."), link("l", "d/up/../outside")),
        "outside",
    ),
    "written through": (lambda: tar(folder("d"), link("l", "d"), file("l/f")), "not a folder"),
    "written through a chain": (
        lambda: tar(folder("d"), link("a", "d"), link("b", "a"), file("b/f")),
        "not a folder",
    ),
    "written through itself": (lambda: tar(link("l", "l"), file("l/f")), "not a folder"),
    "written through a dangling one": (lambda: tar(link("l", "gone"), file("l/f")), "not a folder"),
    "used as a folder": (lambda: tar(folder("d"), link("l", "d"), folder("l/e")), "not a folder"),
    "replaced by a file": (lambda: tar(link("l", "f"), file("l")), "twice"),
    "replaced by a folder": (lambda: tar(link("l", "d"), folder("l")), "twice"),
    "instead of a folder": (lambda: tar(folder("d"), link("d", "x")), "twice"),
    "instead of a folder that is not empty": (lambda: tar(file("d/f"), link("d", "x")), "twice"),
    "hard, to an absolute path": (lambda: tar(hard("h", "/etc/passwd")), "absolute"),
    "hard, to a parent": (lambda: tar(hard("h", "../outside")), "leaves the archive"),
    "hard, to nothing": (lambda: tar(hard("h", "")), "not a name"),
    "hard, to what did not come": (lambda: tar(hard("h", "victim")), "did not come before"),
    "hard, to a link": (lambda: tar(link("l", "x"), hard("h", "l")), "did not come before"),
    "hard, through a link": (
        lambda: tar(file("d/f"), link("l", "d"), hard("h", "l/f")),
        "did not come before",
    ),
    "hard, to a folder": (lambda: tar(folder("d"), hard("h", "d")), "did not come before"),
    "hard, to itself": (lambda: tar(hard("h", "h")), "did not come before"),
    "hard, placed through a link": (
        lambda: tar(file("f"), folder("d"), link("l", "d"), hard("l/h", "f")),
        "not a folder",
    ),
}

KINDS: dict[str, tuple[Callable[[], bytes], str]] = {
    "a character device": (
        lambda: tar(member("null", tarfile.CHRTYPE, devmajor=1, devminor=3)),
        "character device",
    ),
    "a block device": (
        lambda: tar(member("sda", tarfile.BLKTYPE, devmajor=8, devminor=0)),
        "block device",
    ),
    "a FIFO": (lambda: tar(member("pipe", tarfile.FIFOTYPE)), "FIFO"),
    "a GNU sparse file": (lambda: raw(member("s", tarfile.GNUTYPE_SPARSE)), "sparse"),
    "a pax sparse file": (
        lambda: extended(b"x", records(GNU__sparse__major="1"), raw(member("s"))),
        "sparse",
    ),
    "a sparse file in a global header": (
        lambda: extended(b"g", records(GNU__sparse__size="99"), raw(member("s"))),
        "sparse",
    ),
    "an unknown type": (lambda: with_type(b"Z"), "unknown type"),
    "a volume's name": (lambda: with_type(b"V"), "unknown type"),
    "a continued volume": (lambda: with_type(b"M"), "unknown type"),
    "a folder with content": (lambda: with_content(tarfile.DIRTYPE), "has content"),
    "a link with content": (lambda: with_content(tarfile.SYMTYPE), "has content"),
    "a hard link with content": (lambda: with_content(tarfile.LNKTYPE), "has content"),
    "the same file twice": (lambda: tar(file("f", b"1"), file("f", b"2")), "twice"),
    "the same file in other words": (lambda: tar(file("a/f"), file("a//./f")), "twice"),
    "a file that becomes a folder": (lambda: tar(file("f"), file("f/g")), "not a folder"),
    "a folder that becomes a file": (lambda: tar(file("d/f"), file("d")), "twice"),
}

DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "ends early"),
    "no archive": (lambda: b"#!/bin/sh\necho hello\n" * 100, "not a tar archive"),
    "a zstd archive": (lambda: b"\x28\xb5\x2f\xfd" + bytes(600), "zstd"),
    "gzip in gzip in gzip": (nested_gzip, "ends early"),
    "a bad checksum": (lambda: tar(file("f")).replace(b"f", b"g", 1), "damaged"),
    "half a header": (lambda: tar(file("f"))[:300], "ends early"),
    "half a file": (lambda: raw(member("f", size=5000), b"x" * 100, end=False)[:700], "ends early"),
    "no end": (lambda: raw(member("f"), end=False), "ends early"),
    "half a gzip": (lambda: gzip.compress(tar(file("f", bytes(range(256)) * 99)))[:-40], "damaged"),
    "half a bzip2": (lambda: bz2.compress(tar(file("f", bytes(range(256)) * 99)))[:-40], "damaged"),
    "half an xz": (lambda: lzma.compress(tar(file("f", bytes(range(256)) * 99)))[:-40], "damaged"),
    "an xz that wants 2 GiB of memory": (xz_with_a_huge_dictionary, "damaged"),
    "a negative size": (with_negative_size, "negative"),
    "a negative size in a pax header": (
        lambda: extended(b"x", records(size="-1"), raw(member("f"))),
        "negative",
    ),
    "a size that is no number": (
        lambda: extended(b"x", records(size="many"), raw(member("f"))),
        "damaged",
    ),
    "a record without an end": (lambda: extended(b"x", b"99 path=f", raw(member("f"))), "damaged"),
    "a record of length 0": (lambda: extended(b"x", b"0 path=f\n", raw(member("f"))), "damaged"),
    "a record without a key": (lambda: extended(b"x", b"6 abc\n", raw(member("f"))), "damaged"),
}

BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "zeros in gzip": (lambda: gzip.compress(tar(file("f", _ZEROS))), "more than"),
    "zeros in bzip2": (lambda: bz2.compress(tar(file("f", _ZEROS))), "more than"),
    "zeros in xz": (lambda: lzma.compress(tar(file("f", _ZEROS))), "more than"),
    "many small files in gzip": (lambda: gzip.compress(many(3000)), "more than"),
    "more entries than allowed": (lambda: many(1200), "more than 1000 entries"),
    "a header that claims a terabyte": (
        lambda: raw(member("f", size=1 << 40), b"x", end=True),
        "more than",
    ),
    "a pax size of an exabyte": (
        lambda: extended(b"x", records(size=str(1 << 60)), raw(member("f"))),
        "more than",
    ),
    "a pax header of 1 MiB": (
        lambda: extended(b"x", bytes(1 << 20), raw(member("f"))),
        "extended header",
    ),
    "a GNU name of 1 MiB": (
        lambda: extended(b"L", b"n" * (1 << 20), raw(member("f"))),
        "extended header",
    ),
    "a pax header that claims a gigabyte": (
        lambda: raw(member("x", b"x", size=1 << 30), b"", end=True),
        "extended header",
    ),
    "extended headers without an end": (
        lambda: extended(b"L", b"name\0") * 1200,
        "more than 1000 entries",
    ),
    "nothing but global headers": (
        lambda: extended(b"g", records(comment="c")) * 1200,
        "more than 1000 entries",
    ),
}

ALL = {
    f"{group}: {name}": case
    for group, cases in (
        ("name", NAMES),
        ("link", LINKS),
        ("kind", KINDS),
        ("damaged", DAMAGED),
        ("bomb", BOMBS),
    )
    for name, case in cases.items()
}
