"""Controllers that share a database, one with a disk of its own that is full: another one leads."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from controller.store.base import FULL_BYTES, ROOM_BYTES
from fairlead.errors import ApiError
from fairlead.rest import ControllerClient, decode
from tests.e2e.store.test_leaders import Controllers
from tests.support.object_storage import ObjectStorage
from tests.support.processes import ControllerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def controllers(database_url: str, tmp_path: Path, storage: ObjectStorage) -> Iterator[Controllers]:
    """The first one has a small disk for its data folder."""
    options = ["--bucket", str(storage.bucket), "--bucket-endpoint", storage.endpoint]
    made = Controllers(tmp_path, database_url, *options)
    disk = made.all[0].data
    disk.mkdir()
    size = f"size={ROOM_BYTES + FULL_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", disk], check=True)
    try:
        with closing(made):
            made.start()
            yield made
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_leader_whose_disk_is_full_hands_over_and_follows(
    controllers: Controllers, tmp_path: Path
) -> None:
    first, *others = controllers.all
    accepted = {key: controllers.submit(first, key) for key in "ab"}
    fill(first.data)
    successor = another_that_leads(controllers, than=first)
    # Everything works at its address, and uploads go to a disk that has room.
    assert {key: controllers.submit(first, key) for key in accepted} == accepted
    upload(first, controllers.token, tmp_path / "upload")
    assert first.daemon.is_alive()
    assert row_of(first, controllers)["is_disk_full"]
    assert health(first)["disk"] == "ok", "it is the leader's"

    # It leaves the lead to one with room, and takes it when there is none.
    (third,) = [one for one in others if one is not successor]
    successor.kill9()
    assert another_that_leads(controllers, than=successor) is third
    third.kill9()
    accepted["c"] = controllers.submit(first, "c")
    assert controllers.leader(first) is first
    assert health(first)["disk"] == "full"
    with pytest.raises(ApiError, match="No space left on device"):
        upload(first, controllers.token, tmp_path / "upload")

    # The second time in one process.
    successor.start()
    assert another_that_leads(controllers, than=first) is successor
    (first.data / "filler").unlink()
    wait_until(lambda: not row_of(first, controllers)["is_disk_full"], what="room on its disk")
    assert successor.stop() == 0
    assert controllers.leader(first) is first
    assert {key: controllers.submit(first, key) for key in accepted} == accepted


def fill(folder: Path) -> None:
    """Leave less than counts as full."""
    with (folder / "filler").open("wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, shutil.disk_usage(folder).free - (1 << 20))


def another_that_leads(controllers: Controllers, than: ControllerProcess) -> ControllerProcess:
    alive = next(one for one in controllers.all if one is not than and one.daemon.is_alive())

    def found() -> ControllerProcess | None:
        leader = controllers.leader(alive)
        return None if leader is than else leader

    leader = wait_until(found, what="another leader")
    assert leader is not None
    return leader


def row_of(one: ControllerProcess, controllers: Controllers) -> dict[str, Any]:
    client = ControllerClient(one.url, controllers.token)
    listed = decode(client.get("/v1/controllers"), dict[str, Any])["controllers"]
    return next(row for row in listed if row["url"] == one.url and row["status"] != "gone")


def health(one: ControllerProcess) -> dict[str, Any]:
    return decode(ControllerClient(one.url, "").get("/v1/health"), dict[str, Any])


def upload(to: ControllerProcess, token: str, file: Path) -> None:
    """Raises ApiError."""
    content = os.urandom(2 << 20)
    file.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    ControllerClient(to.url, token).upload(digest, file, lambda _: None)
