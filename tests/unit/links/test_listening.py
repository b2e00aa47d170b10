"""Waiting for a runner at what its shim says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.links.listening import ListeningRunners
from fairlead.wire.shim import TaskInfo, TaskStatus, TaskTimes


def task(listens: bool | None, status: TaskStatus = TaskStatus.RUNNING) -> TaskInfo:
    values: dict[str, Any] = {"run_id": "r", "run_name": "r", "allocation_id": "a", "image": "i"}
    times = TaskTimes(submitted_at=0.0)
    return TaskInfo(id="t1", status=status, runner_listens=listens, times=times, **values)


async def waiting(runners: ListeningRunners) -> asyncio.Task[bool]:
    """Return a wait that has begun, and goes on."""
    wait = asyncio.create_task(runners.until_it_listens("t1"))
    await asyncio.sleep(0)
    assert not wait.done()
    return wait


async def test_a_runner_is_waited_for_until_its_shim_says_that_it_listens() -> None:
    runners = ListeningRunners()
    runners.note(task(False))
    wait = await waiting(runners)
    runners.note(task(True))
    assert await wait
    assert await runners.until_it_listens("t1")


@pytest.mark.parametrize("said", [None, True])
async def test_nobody_waits_where_the_shim_does_not_say_or_the_runner_listens(
    said: bool | None,
) -> None:
    runners = ListeningRunners()
    assert await runners.until_it_listens("t1")
    runners.note(task(said))
    assert await runners.until_it_listens("t1")


async def test_a_stale_word_does_not_take_back_that_a_runner_listens() -> None:
    runners = ListeningRunners()
    runners.note(task(True))
    runners.note(task(False))
    assert await runners.until_it_listens("t1")


@pytest.mark.parametrize("goes", [True, False])
async def test_a_task_that_ends_or_goes_keeps_nobody_waiting(goes: bool) -> None:
    runners = ListeningRunners()
    runners.note(task(False))
    wait = await waiting(runners)
    if goes:
        runners.forget("t1")
    else:
        runners.note(task(False, TaskStatus.TERMINATED))
    assert await wait


async def test_a_connection_that_ends_says_so_to_those_who_wait() -> None:
    runners = ListeningRunners()
    runners.note(task(False))
    wait = await waiting(runners)
    runners.close()
    assert not await wait
