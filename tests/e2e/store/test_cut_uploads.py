"""Code that is on its way when a controller ends: the run begins with all of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from fairlead import Client
from fairlead.files import upload
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
def controllers(
    database_url: str, tmp_path: Path, shim_process: ShimFactory, storage: ObjectStorage
) -> Iterator[Controllers]:
    """A leader and a follower with a bucket, and a node."""
    place = msgspec.structs.replace(storage.bucket, prefix=tmp_path.name)
    shim = shim_process("process")
    with ExitStack() as closing:
        options = ["--bucket", str(place), "--bucket-endpoint", storage.endpoint]
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


@pytest.mark.parametrize("how", ["leader stopped", "leader killed", "follower killed"])
def test_an_upload_through_a_follower_is_sent_again(
    controllers: Controllers, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = controllers.all
    known: list[ControllerProcess] = [follower]
    end: Callable[[], object] = leader.stop if how == "leader stopped" else leader.kill9
    if how == "follower killed":
        known, end = [follower, leader], follower.kill9
    ending = Ending(end)
    monkeypatch.setattr(upload, "UploadProgress", ending)
    content = os.urandom(SIZE)
    (tmp_path / "big").write_bytes(content)
    urls = ",".join(one.url for one in known)
    client = Client(urls, controllers.token, tell=lambda _: None)
    task = {"type": "task", "files": ["big"], "commands": ["sha256sum big"]}
    (tmp_path / "task.yaml").write_text(json.dumps(task))
    run = client.submit(tmp_path / "task.yaml", name="job")
    assert run.wait(timeout=LONG).status == "done"
    printed = b"".join(piece.data for piece in run.logs())
    assert printed.startswith(hashlib.sha256(content).hexdigest().encode())
    # With several addresses, the next one gets it in the same try.
    assert ending.tries == (1 if how == "follower killed" else 2)
