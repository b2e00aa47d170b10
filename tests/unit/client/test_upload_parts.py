"""Only what is new of a folder is sent, to the real API."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from fairlead import Client, Task
from fairlead.files.archive import MIN_PART_BYTES
from fairlead.rest import ControllerClient
from fairlead.wire.blobs import Part
from runner.code.tree import unpack
from tests.unit.api.conftest import USER_TOKEN, Controller
from tests.unit.client.test_upload import packed

FILES = 200
FILE_BYTES = 20_000


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each upload."""
    sizes: list[int] = []
    put = ControllerClient._put

    def counted(self: ControllerClient, path: str, pieces: object, size: int) -> None:
        sizes.append(size)
        put(self, path, pieces, size)  # type: ignore[arg-type]

    monkeypatch.setattr(ControllerClient, "_put", counted)
    return sizes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of 4 MB that cannot be packed."""
    made = tmp_path / "code"
    made.mkdir()
    content = random.Random(7)
    for number in range(FILES):
        (made / f"{number:03}.bin").write_bytes(content.randbytes(FILE_BYTES))
    return made


async def submit(client: Client, folder: Path) -> str:
    """Submit a run with the folder; return its id."""
    task = Task(commands=["true"], files=[f"{folder}:/code"])
    return (await asyncio.to_thread(client.submit, task)).id


def stored(controller: Controller, run: str, data: Path) -> dict[str, bytes]:
    """What a node unpacks of a run's upload."""
    (digest,) = controller.pipeline.runs[run].jobs[0].spec.blobs
    target = data / "there"
    target.mkdir()
    unpack(data / "blobs" / digest, target)
    return content_of(target)


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_of_a_folder_with_a_changed_file_only_the_part_with_that_file_is_sent(
    client: Client, controller: Controller, folder: Path, sent: list[int], tmp_path: Path
) -> None:
    await submit(client, folder)
    (folder / "100.bin").write_bytes(b"changed")
    (folder / "new.bin").write_bytes(b"new")
    (folder / "050.bin").unlink()
    run = await submit(client, folder)
    assert stored(controller, run, tmp_path) == content_of(folder)
    first, second = sent
    assert first > FILES * FILE_BYTES
    assert second < first / 3


async def test_what_another_user_sent_is_sent_again(
    client: Client, server: TestServer, folder: Path, sent: list[int]
) -> None:
    """To know the name of a part is no right to its bytes."""
    await submit(client, folder)
    with Client(str(server.make_url("")), USER_TOKEN) as ada:
        await submit(ada, folder)
    assert sent[0] == sent[1]


async def test_an_old_upload_that_is_damaged_on_the_disk_costs_a_whole_one(
    client: Client, controller: Controller, folder: Path, sent: list[int], tmp_path: Path
) -> None:
    run = await submit(client, folder)
    (digest,) = controller.pipeline.runs[run].jobs[0].spec.blobs
    with (tmp_path / "blobs" / digest).open("r+b") as blob:
        blob.seek(100_000)
        blob.write(b"damage")
    (folder / "199.bin").write_bytes(b"changed")
    run = await submit(client, folder)
    assert stored(controller, run, tmp_path) == content_of(folder)
    assert len(sent) == 3


async def test_an_old_upload_that_was_removed_meanwhile_costs_a_whole_one(
    client: Client,
    controller: Controller,
    folder: Path,
    sent: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await submit(client, folder)
    (folder / "100.bin").write_bytes(b"changed")
    missing = ControllerClient.missing_parts

    def then_removed(self: ControllerClient, digest: str, parts: list[Part]) -> frozenset[str]:
        found = missing(self, digest, parts)
        for blob in (tmp_path / "blobs").iterdir():
            if blob.is_file():
                blob.unlink()
        return found

    monkeypatch.setattr(ControllerClient, "missing_parts", then_removed)
    run = await submit(client, folder)
    assert stored(controller, run, tmp_path) == content_of(folder)
    assert len(sent) == 3
    assert sent[2] > sent[0] / 2


def test_a_file_that_comes_changes_only_the_parts_around_it(folder: Path) -> None:
    def parts() -> set[Part]:
        made = packed(folder.parent, files=["code:/code"])
        (upload,) = made.uploads.values()
        assert sum(part.size for part in upload.parts) == upload.file.stat().st_size
        return set(upload.parts)

    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))
    before = parts()
    (folder / "010.more").write_bytes(b"more")
    after = parts()
    assert len(before) > 10
    assert len(before - after) <= 4
    assert max(part.size for part in after) > MIN_PART_BYTES


def test_parts_that_are_joined_are_the_file(folder: Path) -> None:
    made = packed(folder.parent, files=["code:/code"])
    ((digest, upload),) = made.uploads.items()
    content, names = upload.file.read_bytes(), []
    for part in upload.parts:
        piece, content = content[: part.size], content[part.size :]
        names.append(hashlib.sha256(piece).hexdigest())
    assert names == [part.sha256 for part in upload.parts]
    assert hashlib.sha256(upload.file.read_bytes()).hexdigest() == digest
