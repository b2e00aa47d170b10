"""Code that is on its way when a controller ends: the run begins with all of it.

With a bucket, a follower takes it itself, and needs no leader for that.
"""

from __future__ import annotations

import hashlib
import json
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from controller.store.schema import leases
from fairlead import Client
from fairlead.files import upload
from fairlead.run import Run
from tests.e2e.store.process_lab import ProcessLab
from tests.e2e.store.test_leaders import Controllers
from tests.support.object_storage import ObjectStorage
from tests.support.processes import ControllerProcess
from tests.support.testbed import ShimFactory
from tests.support.waiting import LONG

pytestmark = pytest.mark.e2e
SIZE = 48 << 20
"""More than the buffers between a client and the leader's disk have."""


@pytest.fixture
def place(storage: ObjectStorage, tmp_path: Path) -> list[str]:
    """The options that name a bucket of this test."""
    place = msgspec.structs.replace(storage.bucket, prefix=tmp_path.name)
    return ["--bucket", str(place), "--bucket-endpoint", storage.endpoint]


@pytest.fixture
def controllers(
    database_url: str,
    tmp_path: Path,
    shim_process: ShimFactory,
    place: list[str],
    request: pytest.FixtureRequest,
) -> Iterator[Controllers]:
    """A leader and a follower with a node; with a bucket, unless the test's parameter says so."""
    shim = shim_process("process")
    with ExitStack() as closing:
        options = place if getattr(request, "param", True) else []
        made = Controllers(tmp_path, database_url, *options)
        made.all = made.all[:2]
        closing.callback(made.close)
        made.start()
        ProcessLab(made.all[0], tmp_path).cli(
            "node", "add", "here", "--local", shim.socket
        ).succeeded()
        yield made


class Ending:
    """Progress of an upload. `end` is called once, when half of the first try is on its way: then
    the leader has begun to read it."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self.tries = 0

    def __call__(self, *_: object) -> Callable[[int], None]:
        self.tries += 1
        is_over = self.tries > 1

        def sent(count: int) -> None:
            nonlocal is_over
            if not is_over and count >= SIZE // 2:
                is_over = True
                self._end()

        return sent


class Code:
    """A task with a folder of code, and the client that submits it."""

    def __init__(self, folder: Path, token: str, *known: ControllerProcess) -> None:
        self._folder = folder
        self._big = random.Random(1).randbytes(SIZE)
        (folder / "code").mkdir()
        (folder / "code/big").write_bytes(self._big)
        self.change("first")
        task: dict[str, object] = {
            "type": "task",
            "files": ["code"],
            "commands": ["sha256sum code/big", "cat code/note"],
        }
        (folder / "task.yaml").write_text(json.dumps(task))
        self.task = task
        self.client = Client(",".join(one.url for one in known), token, tell=lambda _: None)

    def change(self, note: str) -> None:
        # A smaller file is packed with the one that follows it.
        self._note = note * 50_000
        (self._folder / "code/note").write_text(self._note)

    def submit(self, name: str = "job") -> Run:
        return self.client.submit(self._folder / "task.yaml", name=name)

    def arrived(self, run: Run) -> None:
        assert run.wait(timeout=LONG).status == "done"
        printed = b"".join(piece.data for piece in run.logs()).decode()
        digest = hashlib.sha256(self._big).hexdigest()
        assert printed == f"{digest}  code/big\n{self._note}"


@pytest.mark.parametrize(
    ("controllers", "how", "tries"),
    [
        (True, "leader stopped", 1),
        (True, "leader killed", 1),
        (True, "leader paused", 1),
        (True, "follower killed", 1),
        (True, "follower stopped", 1),
        (False, "leader stopped", 2),
        (False, "leader killed", 2),
    ],
    indirect=["controllers"],
)
def test_an_upload_through_a_follower_arrives_when_a_controller_ends(
    controllers: Controllers,
    how: str,
    tries: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a bucket, the follower needs no leader; with several addresses, the next one gets the
    upload in the same try."""
    leader, follower = controllers.all
    who, _, what = how.partition(" ")
    known = [follower, leader] if who == "follower" else [follower]
    ended = follower if who == "follower" else leader
    ends: dict[str, Callable[[], object]] = {
        "stopped": ended.stop,
        "killed": ended.kill9,
        "paused": partial(ended.daemon.signal, signal.SIGSTOP),
    }
    ending = Ending(ends[what])
    monkeypatch.setattr(upload, "UploadProgress", ending)
    code = Code(tmp_path, controllers.token, *known)
    code.arrived(code.submit())
    assert ending.tries == tries


@contextmanager
def nobody_leads(leader: ControllerProcess, database_url: str) -> Iterator[None]:
    """Within this block the leader is dead, and nobody gets its lease."""
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.execute(sa.select(leases).with_for_update())
        leader.kill9()
        yield


def test_uploads_go_on_while_nobody_leads(
    controllers: Controllers, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = controllers.all
    code = Code(tmp_path, controllers.token, follower)
    at_the_leader = Client(leader.url, controllers.token, tell=lambda _: None)
    upload.send_code(at_the_leader.rest, code.task, tmp_path, {}, lambda _: None)
    code.change("second")
    sent: list[int] = []

    def noted(size: int, *_: object) -> Callable[[int], None]:
        sent.append(size)
        return lambda _: None

    monkeypatch.setattr(upload, "UploadProgress", noted)
    with nobody_leads(leader, database_url):
        upload.send_code(code.client.rest, code.task, tmp_path, {}, lambda _: None)
    (size,) = sent
    assert size < SIZE // 4, "the follower has the other parts from the leader's bucket"
    run = code.submit()
    assert sent == [size], "it is there"
    code.arrived(run)
