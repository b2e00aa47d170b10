"""The promises of every engine, whatever it runs tasks on.

A test module gives a fixture `world` for its engine and inherits the tests. A task is a script in
the words of a POSIX shell, which may call `ready` and `wait_forever`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from fairlead.wire.shim import NetworkMode
from shim.engines.base import ContainerSpec, ContainerState, Engine
from tests.support.waiting import LONG, eventually

DEADLINE = LONG
_PREAMBLE = """cd "$(dirname "$0")"
ready() { : > ready; }
wait_forever() { while :; do sleep 0.05; done; }
"""


class World(Protocol):
    """`again` gives another engine on the same machine, as after a crash of the shim."""

    @property
    def engine(self) -> Engine: ...

    @property
    def folder(self) -> Path: ...

    async def again(self) -> Engine: ...


def spec(world: World, task_id: str, script: str) -> ContainerSpec:
    job, run = world.folder / task_id / "job", world.folder / task_id / "run"
    job.mkdir(parents=True, exist_ok=True)
    run.mkdir(exist_ok=True)
    (job / "script").write_text(_PREAMBLE + script + "\n")
    return ContainerSpec(
        task_id=task_id,
        run_id="run-1",
        allocation_id="place-1",
        image="busybox",
        record=f'{{"of":"{task_id}"}}',
        job_folder=str(job),
        run_folder=str(run),
        network_mode=NetworkMode.HOST,
        hostname=None,
        cpu=0.5,
        memory=64 << 20,
        shm_size=None,
    )


class EngineContract:
    async def test_a_task_that_ends_tells_its_exit_code(self, world: World) -> None:
        container_id = await _run(world, "exit 7")
        assert (await _exit(world.engine, container_id)) == 7

    async def test_waiting_for_what_has_ended_returns_at_once(self, world: World) -> None:
        container_id = await _run(world, "exit 3")
        first = await _exit(world.engine, container_id)
        assert (first, await _exit(world.engine, container_id)) == (3, 3)

    async def test_creating_and_starting_twice_runs_once(self, world: World) -> None:
        wanted = spec(world, "t1", "wait_forever")
        first = await world.engine.create(wanted)
        second = await world.engine.create(wanted)
        await world.engine.start(first)
        await world.engine.start(first)
        found = await world.engine.list()
        assert first == second
        assert [(f.task_id, f.state) for f in found] == [("t1", ContainerState.RUNNING)]

    async def test_an_ended_container_is_never_started_again(self, world: World) -> None:
        container_id = await _run(world, "exit 4")
        await _exit(world.engine, container_id)
        await world.engine.start(container_id)
        (found,) = await world.engine.list()
        assert (found.state, await _exit(world.engine, container_id)) == (ContainerState.EXITED, 4)

    async def test_a_container_carries_what_rebuilds_its_record(self, world: World) -> None:
        await world.engine.create(spec(world, "t1", "exit 0"))
        (found,) = await world.engine.list()
        assert (found.record, found.state) == ('{"of":"t1"}', ContainerState.CREATED)

    async def test_a_stop_signal_lets_the_task_end_by_itself(self, world: World) -> None:
        container_id = await _run(world, "trap 'exit 5' TERM; ready; wait_forever")
        await world.engine.signal_stop(container_id)
        assert await _exit(world.engine, container_id) == 5

    async def test_a_kill_ends_what_ignores_the_stop_signal(self, world: World) -> None:
        container_id = await _run(world, "trap '' TERM; ready; wait_forever")
        await world.engine.signal_stop(container_id)
        await world.engine.kill(container_id)
        assert await _exit(world.engine, container_id) == 137

    async def test_stopping_and_removing_what_is_gone_does_nothing(self, world: World) -> None:
        container_id = await _run(world, "exit 0")
        await _exit(world.engine, container_id)
        await world.engine.signal_stop(container_id)
        await world.engine.kill(container_id)
        await world.engine.remove("t1")
        await world.engine.remove("t1")
        assert await world.engine.list() == ()

    async def test_removing_a_running_task_ends_the_wait_for_it(self, world: World) -> None:
        container_id = await _run(world, "ready; wait_forever")
        waiter = asyncio.create_task(world.engine.wait(container_id))
        await world.engine.remove("t1")
        async with asyncio.timeout(DEADLINE):
            await waiter
        assert await world.engine.list() == ()

    async def test_waiting_for_what_never_was_says_that_it_is_gone(self, world: World) -> None:
        async with asyncio.timeout(DEADLINE):
            assert (await world.engine.wait("never-was")).gone

    async def test_another_engine_on_the_same_machine_finds_the_running_task(
        self, world: World
    ) -> None:
        container_id = await _run(world, "trap 'exit 6' TERM; ready; wait_forever")
        other = await world.again()
        (found,) = await other.list()
        assert (found.container_id, found.state) == (container_id, ContainerState.RUNNING)
        await other.signal_stop(container_id)
        async with asyncio.timeout(DEADLINE):
            await other.wait(container_id)
        assert [f.state for f in await other.list()] == [ContainerState.EXITED]


async def _run(world: World, script: str) -> str:
    """Returns once the script has called `ready`, if it does."""
    container_id = await world.engine.create(spec(world, "t1", script))
    await world.engine.start(container_id)
    if "ready" in script:
        await eventually((world.folder / "t1" / "job" / "ready").exists, timeout=DEADLINE)
    return container_id


async def _exit(engine: Engine, container_id: str) -> int | None:
    async with asyncio.timeout(DEADLINE):
        return (await engine.wait(container_id)).exit_code
