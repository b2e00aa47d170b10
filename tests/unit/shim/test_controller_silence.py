"""A task that asked for it ends when no controller is heard, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from fairlead.wire.shim import FENCE_HEADER, Fence, TaskStatus
from shim.api.app import make_app
from shim.tasks import controller_silence
from shim.tasks.controller_silence import ControllerSilence, HeardRecord
from tests.doubles.engines import MemoryEngine
from tests.doubles.records import MemoryRecords
from tests.unit.shim.parts import CALLER, Node, request, until


class Seconds:
    """Since the boot, as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(controller_silence, "_since_boot", lambda: self.now)
        monkeypatch.setattr(controller_silence, "_LOOK_SECONDS", 0.01)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    return Seconds(monkeypatch)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_an_unheard_task_is_stopped_and_says_why(node: Node, seconds: Seconds) -> None:
    async with node.shim() as daemon:
        wish = request(stop_when_unheard_seconds=600.0)
        await daemon.supervisor.put("t1", wish, CALLER)
        await until(daemon, "t1", TaskStatus.RUNNING)
        seconds.now += 600.0
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert ended.reason == "instance_unreachable"
    assert "600 s" in (ended.message or "")


async def test_a_task_that_did_not_ask_for_it_goes_on(node: Node, seconds: Seconds) -> None:
    async with node.shim() as daemon:
        await daemon.supervisor.put("t1", request(), CALLER)
        wish = request(allocation_id="place-2", stop_when_unheard_seconds=600.0)
        await daemon.supervisor.put("t2", wish, CALLER)
        await until(daemon, "t1", TaskStatus.RUNNING)
        await until(daemon, "t2", TaskStatus.RUNNING)
        seconds.now += 10_000.0
        await until(daemon, "t2", TaskStatus.TERMINATED)
        assert daemon.supervisor.info("t1").status is TaskStatus.RUNNING


async def test_a_request_with_a_fence_is_a_controllers_word_and_no_other_is(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node.shim() as daemon, TestClient(TestServer(make_app(daemon))) as client:
        heard: list[Fence] = []
        monkeypatch.setattr(daemon, "heard", heard.append)
        async with client.get("/v1/health") as answer:
            assert answer.status == 200
        async with client.get("/v1/health", headers={FENCE_HEADER: "1.1"}) as answer:
            assert answer.status == 200
        async with client.get("/v1/tasks/none", headers={FENCE_HEADER: "2.1"}) as answer:
            assert answer.status == 404
        async with client.get("/v1/health", headers={FENCE_HEADER: "nonsense"}) as answer:
            assert answer.status == 200
        assert heard == [Fence(1, 1)]


async def test_a_controller_that_was_taken_over_is_not_heard(node: Node, seconds: Seconds) -> None:
    async with node.shim() as daemon:
        made = ControllerSilence(daemon.supervisor, MemoryRecords(), "this", seconds.now)
        made.heard(Fence(1, 2))
        seconds.now += 300.0
        made.heard(Fence(1, 1))
        assert made.silent_for == 300.0
        made.heard(Fence(1, 2))
        assert made.silent_for == 0.0
        await made.close()


@pytest.mark.parametrize(("boot", "heard_at"), [("this", 400.0), ("earlier", 1000.0)])
async def test_the_last_contact_outlives_the_shim_but_not_the_boot(
    node: Node, seconds: Seconds, boot: str, heard_at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: MemoryRecords[HeardRecord] = MemoryRecords()
    records.kept["heard"] = HeardRecord(boot_id=boot, at=400.0)
    monkeypatch.setattr(controller_silence, "DiskRecords", lambda *_: records)
    async with node.shim(MemoryEngine(node.host)) as daemon:
        data, executor = node.settings.data, daemon.executor
        made = await ControllerSilence.open(daemon.supervisor, data, executor, "this", ())
        assert made.silent_for == 1000.0 - heard_at
        await made.close()
