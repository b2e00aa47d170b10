"""Logs and outputs that are on their way when their controller ends: each byte comes once."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead import AsyncClient, Client
from fairlead.rest import ControllerClient
from tests.e2e.store.process_lab import ProcessLab
from tests.e2e.store.test_leaders import Controllers
from tests.support.object_storage import ObjectStorage
from tests.support.processes import ControllerProcess
from tests.support.testbed import ShimFactory
from tests.support.waiting import LONG

pytestmark = pytest.mark.e2e
LINES = 3_000_000
"""So many that no buffer between a controller and its client has all of them."""
PRINTED = b"".join(b"%07d\n" % number for number in range(1, LINES + 1))
CARRIED = 48 << 20


class Bed:
    """A leader and a follower with a bucket, and a run that has ended: its log and its output are
    large."""

    def __init__(self, controllers: Controllers, folder: Path) -> None:
        self.leader, self.follower = controllers.all
        self.controllers = controllers
        lab = ProcessLab(self.leader, folder)
        write = f"head -c {CARRIED} /dev/urandom | tee $FAIRLEAD_OUTPUT_DIR/carried | sha256sum"
        lab.start("job", commands=[f"seq -w 1 {LINES}", write])
        run = self.client(self.leader).run("job")
        assert run.wait(timeout=LONG).status == "done"

    def client(self, *order: ControllerProcess) -> Client:
        urls = ",".join(one.url for one in order)
        return Client(urls, self.controllers.token, tell=lambda _: None)

    def ends(self, how: str) -> tuple[ControllerProcess, ControllerProcess, Callable[[], Any]]:
        """Return the controller that ends, the other one, and what ends the first."""
        if how == "follower killed":
            return self.follower, self.leader, self.follower.kill9
        if how == "leader killed":
            return self.leader, self.follower, self.leader.kill9
        return self.leader, self.follower, self.leader.stop


@pytest.fixture
def bed(
    database_url: str, tmp_path: Path, shim_process: ShimFactory, storage: ObjectStorage
) -> Iterator[Bed]:
    place = msgspec.structs.replace(storage.bucket, prefix=tmp_path.name)
    shim = shim_process("process")
    with ExitStack() as closing:
        options = ["--bucket", str(place), "--bucket-endpoint", storage.endpoint]
        controllers = Controllers(tmp_path, database_url, *options)
        controllers.all = controllers.all[:2]
        closing.callback(controllers.close)
        controllers.start()
        ProcessLab(controllers.all[0], tmp_path).cli(
            "node", "add", "here", "--local", shim.socket
        ).succeeded()
        yield Bed(controllers, tmp_path)


ENDS = ["leader stopped", "leader killed", "follower killed"]


@pytest.mark.parametrize("how", ENDS)
def test_a_stored_log_comes_whole_and_once(bed: Bed, how: str) -> None:
    ending, other, end = bed.ends(how)
    pieces = bed.client(ending, other).run("job").logs()
    came = [next(pieces).data]
    end()
    came += [piece.data for piece in pieces]
    assert b"".join(came)[: len(PRINTED)] == PRINTED


async def test_a_stored_log_comes_whole_and_once_to_a_program_with_an_event_loop(bed: Bed) -> None:
    came = list[bytes]()
    urls = f"{bed.leader.url},{bed.follower.url}"
    async with AsyncClient(urls, bed.controllers.token, tell=lambda _: None) as client:
        run = await client.run("job")
        async for piece in run.logs():
            if not came:
                await asyncio.to_thread(bed.leader.stop)
            came.append(piece.data)
    assert b"".join(came)[: len(PRINTED)] == PRINTED


@pytest.mark.parametrize("how", ENDS)
def test_outputs_come_whole(
    bed: Bed, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, other, end = bed.ends(how)
    run = bed.client(ending, other).run("job")
    *_, last = (piece.data for piece in run.logs())
    download, tries = ControllerClient.download, 0

    def ended_meanwhile(
        rest: ControllerClient, path: str, file: Path, heard: Callable[[int], None], **query: object
    ) -> None:
        nonlocal tries
        tries += 1
        download(rest, path, file, heard if tries > 1 else lambda _: end(), **query)

    monkeypatch.setattr(ControllerClient, "download", ended_meanwhile)
    run.pull_outputs(tmp_path / "out")
    digest = hashlib.sha256((tmp_path / "out" / "carried").read_bytes()).hexdigest()
    assert last.startswith(digest.encode())
    assert tries > 1
