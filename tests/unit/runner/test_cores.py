"""Core dumps of a job are found by the kernel's own rule, and told where none can be kept."""

from __future__ import annotations

import errno
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import cast

import msgspec
import pytest

from runner.code.helper import Helpers
from runner.job.cores import CoreCopier, Kernel, Order, folder_of, keep, names_of, why_none
from runner.processes.spawn import Ending

CORE = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x04\x00" + b"memory"
PROGRAM = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + b"code"
UNLIMITED = -1
NOT_NEEDED = cast(Helpers, None)
CRASHED = Ending(139, "SIGSEGV")


@pytest.mark.parametrize(
    ("pattern", "uses_pid", "name", "fits"),
    [
        ("core", False, "core", True),
        ("core", False, "core.17", False),
        ("core", True, "core.17", True),
        ("core.%p", True, "core.17", True),
        ("core.%p", False, "score.17", False),
        ("/var/crash/%e-%t.core", False, "python3-1700000000.core", True),
        ("%h%%.core", False, "host%.core", True),
        ("a+b", False, "aab", False),
    ],
)
def test_names_are_those_that_the_kernel_makes(
    pattern: str, uses_pid: bool, name: str, fits: bool
) -> None:
    found = re.fullmatch(names_of(pattern, uses_pid=uses_pid), name)
    assert (found is not None) is fits


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [
        ("core", "/work"),
        ("cores/core.%p", "/work"),
        ("/core", "/"),
        ("/var/crash/core.%p", "/var/crash"),
        ("/var/crash/%u/of-%e/core", "/var/crash"),
    ],
)
def test_only_an_absolute_pattern_names_the_folder(pattern: str, folder: str) -> None:
    assert folder_of(pattern, "/work") == folder


def test_a_node_that_gives_them_away_and_a_limit_of_zero_are_told() -> None:
    given_away = why_none("|/usr/share/apport/apport %p", UNLIMITED)
    assert given_away is not None
    assert "'/usr/share/apport/apport'" in given_away
    assert "kernel.core_pattern=core.%p" in given_away
    zero = why_none("core", 0)
    assert zero is not None
    assert "ulimit -Hc" in zero
    assert why_none("core", UNLIMITED) is None


async def test_only_a_crash_is_told_that_none_is_kept() -> None:
    order = Order(working_dir="/", target="/", since=0, most=1)
    kernel = Kernel("|/bin/collect", False)
    (line,) = await keep(NOT_NEEDED, order, CRASHED, kernel)
    assert line.startswith("core dumps: none is kept: on this node kernel.core_pattern gives")
    assert await keep(NOT_NEEDED, order, Ending(0), kernel) == []


def copied(tmp_path: Path, *, most: int = 1, limit: int | None = None) -> list[str]:
    target = tmp_path / "output"
    target.mkdir(exist_ok=True)
    copier = CoreCopier(
        Order(
            working_dir=str(tmp_path / "work"),
            target=str(target),
            since=1000.0,
            most=most,
            limit=limit,
            names=r"core(?:\.\d+)?",
        )
    )
    copier.run()
    return copier.lines


def write(path: Path, content: bytes, written_at: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (written_at, written_at))


def test_the_oldest_ones_since_the_start_are_kept_and_others_counted(tmp_path: Path) -> None:
    work = tmp_path / "work"
    write(work / "core", CORE, 900.0)
    write(work / "deep/core.7", CORE, 1002.0)
    write(work / "core.8", CORE + b"8", 1001.0)
    write(work / "core.9", CORE, 1003.0)
    lines = copied(tmp_path, most=2)
    kept = sorted(path.name for path in (tmp_path / "output/cores").iterdir())
    assert kept == ["core.7", "core.8"]
    assert (tmp_path / "output/cores/core.8").read_bytes() == CORE + b"8"
    assert lines[-1] == "core dumps: 1 more are not kept (core_dumps)"


def test_what_is_no_core_dump_is_left_where_it_is(tmp_path: Path) -> None:
    work = tmp_path / "work"
    write(work / "core", PROGRAM, 1001.0)
    write(work / "core.1", b"text", 1001.0)
    (work / "core.2").symlink_to("/etc/passwd")
    (work / "core.3").mkdir()
    os.mkfifo(work / "core.4")
    assert copied(tmp_path, most=9) == []
    assert not (tmp_path / "output/cores").exists()


def test_one_that_is_beyond_the_limit_is_told_and_a_later_one_kept(tmp_path: Path) -> None:
    work = tmp_path / "work"
    write(work / "core.1", CORE + bytes(500), 1001.0)
    write(work / "core.2", CORE, 1002.0)
    first, second = copied(tmp_path, most=2, limit=100)
    assert first.endswith("is beyond the limit of outputs")
    assert second.endswith("is kept as cores/core.2")


def whole_of(segments: list[tuple[int, int]], order: str, bits: int) -> bytes:
    """The head of a core dump whose segments are at these places with these sizes (elf(5))."""
    head = b"\x7fELF" + bytes((bits // 32, 1 if order == "<" else 2, 1)) + bytes(9)
    head += struct.pack(f"{order}HHI", 4, 62, 1)
    if bits == 64:
        head += struct.pack(f"{order}QQQIHHHHHH", 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0)
        parts = [struct.pack(f"{order}IIQQQQQQ", 1, 4, at, 0, 0, n, n, 1) for at, n in segments]
    else:
        head += struct.pack(f"{order}IIIIHHHHHH", 0, 52, 0, 0, 52, 32, len(segments), 0, 0, 0)
        parts = [struct.pack(f"{order}IIIIIIII", 1, at, 0, 0, n, n, 4, 1) for at, n in segments]
    return head + b"".join(parts)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("bits", [32, 64])
def test_one_that_the_kernel_cut_is_kept_and_told(tmp_path: Path, order: str, bits: int) -> None:
    core = whole_of([(200, 100), (300, 4096)], order, bits).ljust(1000, b"x")
    write(tmp_path / "work/core", core, 1001.0)
    write(tmp_path / "work/core.2", core.ljust(4396, b"x"), 1002.0)
    cut, whole = copied(tmp_path, most=2)
    assert cut.endswith(
        "(1000 bytes) is kept as cores/core, but it was cut: the whole one has 4396 bytes,"
        " more than `ulimit -c` or the disk allowed"
    )
    assert whole.endswith("(4396 bytes) is kept as cores/core.2")


def test_two_of_one_name_are_both_kept(tmp_path: Path) -> None:
    work = tmp_path / "work"
    write(work / "a/core", CORE + b"a", 1001.0)
    write(work / "b/core", CORE + b"b", 1002.0)
    copied(tmp_path, most=2)
    cores = tmp_path / "output/cores"
    assert {path.name: path.read_bytes()[-1:] for path in cores.iterdir()} == {
        "core": b"a",
        "core-2": b"b",
    }


def test_a_folder_that_is_not_in_the_container_has_none(tmp_path: Path) -> None:
    assert copied(tmp_path) == []


def test_a_core_dump_that_cannot_be_copied_whole_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fills_the_disk(source: Path, target: Path, *, follow_symlinks: bool) -> None:
        target.write_bytes(source.read_bytes()[:4])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", fills_the_disk)
    write(tmp_path / "work/core", CORE, 1001.0)
    (line,) = copied(tmp_path)
    assert line.endswith("No space left on device")
    assert list((tmp_path / "output/cores").iterdir()) == []


def test_a_name_that_is_not_utf8_is_copied_and_told(tmp_path: Path) -> None:
    folder = tmp_path / "work" / os.fsdecode(b"\xff")
    write(folder / "core", CORE, 1001.0)
    (tmp_path / "output").mkdir()
    order = Order(
        working_dir=str(tmp_path / "work"),
        target=str(tmp_path / "output"),
        since=1000.0,
        most=1,
        names="core",
    )
    argv = [sys.executable, "-m", "runner.job.cores", msgspec.json.encode(order).decode()]
    env = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(argv, check=True, capture_output=True, env=env)
    assert b"\xff/core" in done.stdout
    assert (tmp_path / "output/cores/core").read_bytes() == CORE
