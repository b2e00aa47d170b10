"""A stop carries its grace to the runner, so that the job's exit record outlives the container."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from fairlead.wire.shim import TaskStatus, TerminateRequest
from runner.job import execution
from shim.daemon import Daemon
from shim.files import safe_files
from shim.tasks import stopping
from tests.doubles.failing_engines import ListeningEngine
from tests.support.waiting import eventually
from tests.unit.shim.parts import (
    CALLER,
    Node,
    listen,
    request,
    stop_the_clock_until_a_signal,
    until,
)

WHY = "terminated_by_user"
SOON = 0.05


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.host.ignores_stop = True
    return node


async def running(daemon: Daemon) -> None:
    await daemon.supervisor.put("t1", request(), CALLER)
    await until(daemon, "t1", TaskStatus.RUNNING)


async def order(daemon: Daemon, grace: float) -> None:
    wish = TerminateRequest(grace=grace, reason=WHY)
    await daemon.supervisor.terminate("t1", wish, CALLER)


def kill_at(node: Node) -> float:
    stop = node.task_records["t1"].stop
    assert stop is not None
    return stop.kill_at


async def test_the_runner_finds_its_grace_when_the_signal_comes(node: Node) -> None:
    engine = ListeningEngine(node.host, node.settings.job_folder("t1"))
    async with node.shim(engine) as daemon:
        await running(daemon)
        await order(daemon, 3600.0)
        await eventually(lambda: engine.told != [])
    assert engine.told == [kill_at(node)]


async def test_only_a_shorter_grace_is_told_anew(node: Node) -> None:
    engine = ListeningEngine(node.host, node.settings.job_folder("t1"))
    async with node.shim(engine) as daemon:
        await running(daemon)
        for grace in (3600.0, 7200.0, 1800.0):
            await order(daemon, grace)
            await eventually(lambda: engine.told[-1:] == [kill_at(node)])
    assert len(engine.told) == 2


async def test_a_runner_that_could_not_hear_yet_is_told_again_once_it_listens(node: Node) -> None:
    engine = ListeningEngine(node.host, node.settings.job_folder("t1"))
    async with node.shim(engine) as daemon:
        await running(daemon)
        await order(daemon, 3600.0)
        await eventually(lambda: engine.told != [])
        with listen(node.settings.socket_folder("t1") / "runner.sock"):
            await eventually(lambda: len(engine.told) > 1)
        await order(daemon, 1800.0)
        await eventually(lambda: engine.told[-1] == kill_at(node))
    assert len(engine.told) == 3


async def test_a_runner_that_listens_is_told_once(node: Node) -> None:
    engine = ListeningEngine(node.host, node.settings.job_folder("t1"))
    async with node.shim(engine) as daemon:
        await running(daemon)
        path = Path(daemon.supervisor.info("t1").runner_socket)
        with listen(node.settings.socket_folder("t1") / "runner.sock"):
            await eventually(path.exists)
            await order(daemon, 3600.0)
            await eventually(lambda: engine.told != [])
            await order(daemon, 1800.0)
            await eventually(lambda: engine.told[-1] == kill_at(node))
    assert len(engine.told) == 2


async def test_another_life_of_the_shim_tells_it_again(node: Node) -> None:
    async with node.shim() as daemon:
        await running(daemon)
        await order(daemon, 3600.0)
    engine = ListeningEngine(node.host, node.settings.job_folder("t1"))
    async with node.shim(engine):
        await eventually(lambda: engine.told != [])
    assert engine.told == [kill_at(node)]


async def test_the_container_outlasts_the_grace_for_the_runners_last_words(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_the_clock_until_a_signal(node, monkeypatch)
    monkeypatch.setattr(stopping, "LAST_WORDS", 3600.0)
    engine = ListeningEngine(node.host, node.settings.job_folder("t1"))
    record = node.settings.job_folder("t1") / "exit.json"
    async with node.shim(engine) as daemon:
        await running(daemon)
        await order(daemon, SOON)
        await eventually(lambda: engine.told != [])
        await eventually(lambda: time.time() > kill_at(node))
        record.write_text('{"exit_code":137}')
        node.host.containers["c-t1"].end(137)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (ended.exit_record, node.host.log) == ('{"exit_code":137}', ["stop c-t1"])


async def test_an_abort_leaves_no_time_for_last_words(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "LAST_WORDS", 3600.0)
    engine = ListeningEngine(node.host, node.settings.job_folder("t1"))
    async with node.shim(engine) as daemon:
        await running(daemon)
        await order(daemon, 3600.0)
        await eventually(lambda: engine.told != [])
        await order(daemon, 0.0)
        await until(daemon, "t1", TaskStatus.TERMINATED)
    assert node.host.log == ["stop c-t1", "kill c-t1"]


async def test_a_grace_that_cannot_be_told_is_kept_all_the_same(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file = safe_files.replace_file

    def refuse_the_order(folder: Path, name: str, content: bytes) -> None:
        if name == "stop.json":
            raise OSError(28, "No space left on device")
        replace_file(folder, name, content)

    monkeypatch.setattr(safe_files, "replace_file", refuse_the_order)
    stop_the_clock_until_a_signal(node, monkeypatch)
    monkeypatch.setattr(stopping, "LAST_WORDS", 0.05)
    engine = ListeningEngine(node.host, node.settings.job_folder("t1"))
    async with node.shim(engine) as daemon:
        await running(daemon)
        await order(daemon, SOON)
        ended = await until(daemon, "t1", TaskStatus.TERMINATED)
    assert (engine.told, node.host.log) == ([None], ["stop c-t1", "kill c-t1"])
    assert ended.reason == WHY


def test_the_order_is_what_the_runner_reads(tmp_path: Path) -> None:
    (tmp_path / "stop.json").write_bytes(msgspec.json.encode({"kill_at": 130.0}))
    assert execution.grace_left(tmp_path, 100.0) == 30.0
