"""The tar of a job's outputs: whole, resumable, and nothing of the node whatever the job made."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from common.files import output_tar
from shim.files import outputs

LIMIT = 1 << 20


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    (folder / "output").mkdir(parents=True)
    return folder


async def sent(job: Path, executor: ThreadPoolExecutor, limit: int = LIMIT, at: int = 0) -> bytes:
    made = outputs.plan(job, limit)
    return b"".join([piece async for piece in outputs.read(job, made, at, executor)])


def unpacked(data: bytes) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            content = archive.extractfile(member)
            found[member.name] = None if content is None else content.read()
    return found


async def test_files_and_folders_come_with_their_names(
    job: Path, executor: ThreadPoolExecutor
) -> None:
    files = {"a.txt": b"a", "empty": b"", "deep/ü/b.bin": bytes(range(256)) * 40, "x" * 200: b"l"}
    for name, content in files.items():
        path = job / "output" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    data = await sent(job, executor)
    assert unpacked(data) == {**files, "deep": None, "deep/ü": None}
    about = outputs.plan(job, LIMIT).about
    assert (about.files, about.left_out, about.length) == (4, 0, len(data))
    assert about.size == sum(map(len, files.values()))


async def test_a_reading_goes_on_at_any_byte(job: Path, executor: ThreadPoolExecutor) -> None:
    for name in ("a", "b", "c" * 150):
        (job / "output" / name).write_bytes(name.encode() * 777)
    whole = await sent(job, executor)
    for at in (0, 1, 511, 512, 700, 1289, 1536, len(whole) - 1, len(whole)):
        assert await sent(job, executor, at=at) == whole[at:]


async def test_links_pipes_sockets_and_devices_are_left_out(
    job: Path, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_bytes(b"secret")
    folder = job / "output"
    (folder / "kept").write_bytes(b"kept")
    (folder / "file").symlink_to(tmp_path / "secret" / "key")
    (folder / "folder").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to("../../secret/key")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    data = await sent(job, executor)
    assert unpacked(data) == {"kept": b"kept"}
    assert b"secret" not in data
    assert outputs.plan(job, LIMIT).about.left_out == 5


async def test_links_that_stay_within_come_as_links_when_they_are_wanted(
    job: Path, executor: ThreadPoolExecutor
) -> None:
    folder = job / "output"
    (folder / "deep").mkdir()
    (folder / "deep/a").write_bytes(b"a")
    within = {"latest": "deep/a", "deep/up": "../deep", "deep/self": ".", "dangling": "none"}
    out = {"abs": "/etc", "up": "..", "deep/far": "../..", "deep/zig": "a/../../..", "e": "./../x"}
    for name, target in {**within, **out}.items():
        (folder / name).symlink_to(target)
    made = outputs.plan(job, LIMIT, links=True)
    data = b"".join([piece async for piece in outputs.read(job, made, 0, executor)])
    assert len(data) == made.about.length
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {one.name: one.linkname for one in archive if one.issym()}
        archive.extractall(job / "here", filter="data")
    assert (found, made.about.left_out, made.about.files) == (within, len(out), 1)
    assert (job / "here/latest").read_bytes() == b"a"


async def test_an_output_folder_that_is_a_link_gives_nothing(
    tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_bytes(b"secret")
    job = tmp_path / "job"
    job.mkdir()
    (job / "output").symlink_to(tmp_path / "secret")
    assert not outputs.has_any(job)
    assert unpacked(await sent(job, executor)) == {}


async def test_whole_files_up_to_the_limit_come_and_the_rest_is_counted(
    job: Path, executor: ThreadPoolExecutor
) -> None:
    for name, size in (("a", 600), ("b", 600), ("c", 300)):
        (job / "output" / name).write_bytes(b"x" * size)
    assert set(unpacked(await sent(job, executor, limit=1000))) == {"a", "c"}
    about = outputs.plan(job, 1000).about
    assert (about.files, about.size, about.left_out, about.left_out_size) == (2, 900, 1, 600)


async def test_a_sparse_file_counts_with_its_whole_size(
    job: Path, executor: ThreadPoolExecutor
) -> None:
    with (job / "output" / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert unpacked(await sent(job, executor)) == {}
    assert outputs.plan(job, LIMIT).about.left_out_size == 1 << 40


async def test_a_tree_that_is_too_deep_ends_where_its_names_are_too_long(
    job: Path, executor: ThreadPoolExecutor
) -> None:
    at = os.open(job / "output", os.O_DIRECTORY)
    for _ in range(40):
        os.mkdir("d" * 100, dir_fd=at)
        below = os.open("d" * 100, os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    found = unpacked(await sent(job, executor))
    assert max(len(name) for name in found) <= 1024
    assert outputs.plan(job, LIMIT).about.left_out == 1


def test_names_that_are_no_text_are_left_out(job: Path) -> None:
    (job / "output" / os.fsdecode(b"\xff")).write_bytes(b"x")
    made = outputs.plan(job, LIMIT)
    assert (made.entries, made.about.left_out) == ((), 1)


def test_a_huge_number_of_entries_is_cut_and_told(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_tar, "MAX_ENTRIES", 10)
    monkeypatch.setattr(output_tar, "_MAX_SEEN", 20)
    for number in range(50):
        (job / "output" / f"{number:03}").touch()
    made = outputs.plan(job, LIMIT)
    assert len(made.entries) == 10
    assert made.about.left_out >= 10
