"""Outputs by the Python client: listed, brought here, and gone on with."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from aiohttp.test_utils import TestServer

from fairlead import AsyncClient, Client, OutputsMissing, Run, Task, UsageError
from fairlead.files.outputs import Arriving
from tests.unit.api.conftest import ADMIN_TOKEN, Controller
from tests.unit.api.test_outputs import stored

HELLO = Task(name="hello", commands=["echo hello"])


@pytest.fixture
async def run(client: Client, controller: Controller) -> Run:
    """Its job has left a file."""
    submitted = await asyncio.to_thread(client.submit, HELLO)
    await stored(controller, {"name": "hello"})
    return await asyncio.to_thread(submitted.refresh)


async def test_outputs_are_listed_with_their_files(client: Client, run: Run) -> None:
    (found,) = await asyncio.to_thread(client.outputs, "hello")
    assert await asyncio.to_thread(run.outputs, "main/0", attempt=0) == (found,)
    assert found.state == "collected"
    assert [(file.name, file.size) for file in found.files or ()] == [("deep/a.txt", 5)]


async def test_outputs_are_pulled_into_the_folder(run: Run, tmp_path: Path) -> None:
    here = tmp_path / "here"
    assert await asyncio.to_thread(run.pull_outputs, here) == [here]
    assert (here / "deep/a.txt").read_bytes() == b"hello"
    assert [path.name for path in here.iterdir()] == ["deep"]


async def test_outputs_that_are_gone_are_named(
    run: Run, controller: Controller, tmp_path: Path
) -> None:
    await controller.outputs.sweep((), written_before=1e12)
    with pytest.raises(OutputsMissing, match="of job main/0 are removed: they have expired"):
        await asyncio.to_thread(run.pull_outputs, tmp_path)


async def test_a_folder_that_cannot_be_made_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/here: Not a directory"):
        await asyncio.to_thread(run.pull_outputs, tmp_path / "file/here")


async def test_a_program_with_an_event_loop_pulls_outputs(
    run: Run, server: TestServer, tmp_path: Path
) -> None:
    async with AsyncClient(str(server.make_url("")), ADMIN_TOKEN) as client:
        found = await client.run("hello")
        assert await found.outputs() == await client.outputs("hello")
        assert await found.pull_outputs(tmp_path) == [tmp_path]
    assert (tmp_path / "deep/a.txt").is_file()


async def test_a_large_download_is_shown_once_a_second_and_at_its_end(run: Run) -> None:
    (found,) = await asyncio.to_thread(run.outputs)
    large = msgspec.structs.replace(found, archive_size=40 << 20)
    now, shown = 0.0, list[str]()
    heard = Arriving(large, shown.append, lambda: now)
    for second, mib in ((0.5, 1), (1.5, 10), (2.0, 20), (2.1, 40)):
        now = second
        heard(mib << 20)
    assert shown == [
        "10 of 40 MiB of the outputs of job main/0 are here",
        "40 of 40 MiB of the outputs of job main/0 are here",
    ]
