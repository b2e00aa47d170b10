"""Sweeps in Python: what became of each parameter set, as the sets end."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp.test_utils import TestServer

from fairlead import AsyncClient, Client, InvalidConfiguration, Result, Task, UsageError
from fairlead.documents.sweeps import SetView
from fairlead.model.reasons import Reason
from fairlead.model.sweep import SetStatus, Value
from fairlead.sweeps import failed_together
from tests.support.waiting import LONG
from tests.unit.api.conftest import ADMIN_TOKEN
from tests.unit.cli.conftest import PlayedNode

TRAIN = Task(name="train", commands=["echo ${{ params.seed }}"])


async def test_results_come_as_sets_end_each_once(client: Client, node: PlayedNode) -> None:
    run = await asyncio.to_thread(
        client.sweep, TRAIN, [{"seed": 1}, {"seed": 2}, {"seed": 3}], max_parallel=1
    )
    await asyncio.to_thread(run.stop_sets, "2")
    reading = asyncio.create_task(asyncio.to_thread(lambda: list(run.results(timeout=LONG))))
    for code in (0, 3):
        await node.runs("train")
        await node.ends("train", code)
    found = await reading
    told = {one.number: (one.parameters["seed"], one.status, one.exit_code) for one in found}
    assert told == {0: (1, "done", 0), 1: (2, "failed", 3), 2: (3, "stopped", None)}
    assert len(found) == 3
    assert run.status == "failed"


async def test_results_are_an_asynchronous_stream_too(server: TestServer, node: PlayedNode) -> None:
    async with AsyncClient(str(server.make_url("")), ADMIN_TOKEN) as client:
        run = await client.sweep(TRAIN, {"seed": [1, 2]}, max_parallel=1)
        found: list[Result] = []

        async def read() -> None:
            async for one in run.results():
                found.append(one)

        reading = asyncio.create_task(read())
        for _ in range(2):
            await node.runs("train")
            await node.ends("train", 0)
        await reading
    assert sorted(one.number for one in found) == [0, 1]


async def test_a_set_that_failed_is_retried_while_the_sweep_lives(
    client: Client, node: PlayedNode
) -> None:
    run = await asyncio.to_thread(client.sweep, TRAIN, {"seed": [1, 2]}, max_parallel=1)
    await node.runs("train")
    await node.ends("train", 1)
    await asyncio.to_thread(run.retry)
    assert run.state.sweep is not None
    assert (run.state.sweep.failed, run.state.sweep.waiting) == (0, 1)


async def test_after_its_end_retry_gives_a_new_run(server: TestServer, node: PlayedNode) -> None:
    async with AsyncClient(str(server.make_url("")), ADMIN_TOKEN) as client:
        run = await client.sweep(TRAIN, {"seed": [1, 2]}, max_parallel=1)
        for code in (0, 1):
            await node.runs("train")
            await node.ends("train", code)
        again = await run.retry()
        assert (again.name, again.id == run.id) == ("train", False)
        assert again.state.sweep is not None
        assert again.state.sweep.total == 1


async def test_retry_tells_which_sets_it_left_out(server: TestServer, node: PlayedNode) -> None:
    check = Task(name="check", commands=["check"], after=[{"run": "train", "job": "same"}])
    async with AsyncClient(str(server.make_url("")), ADMIN_TOKEN) as client:
        train = await client.sweep(TRAIN, {"seed": [1, 2]}, max_parallel=1)
        run = await client.sweep(check, {"seed": [1, 2]}, max_parallel=1)
        for name, code in (("train", 0), ("train", 1), ("check", 1)):
            await node.runs(name)
            await node.ends(name, code)
        assert run.left_out == ()
        again = await run.retry()
        (why,) = again.left_out
        assert why.startswith(f"not retried: 1; of what they wait for, 1 of run train ({train.id})")


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ([], "at least one parameter set"),
        ([{"seed": 1}, {"lr": 1}], r"params\[1\] has lr, not seed"),
    ],
)
def test_sets_that_do_not_agree_are_refused(
    client: Client, params: list[dict[str, int]], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        client.sweep(TRAIN, params)


def test_a_parameter_that_the_sweep_lacks_is_refused(client: Client) -> None:
    with pytest.raises(InvalidConfiguration, match=r"params\.seed"):
        client.sweep(TRAIN, {"lr": [1]})


# -- which sets failed ----------------------------------------------------------------------------


def failed(number: int, reason: Reason, code: int | None, **parameters: Value) -> SetView:
    return SetView(
        number=number,
        parameters=parameters,
        status=SetStatus.FAILED,
        jobs=(),
        attempt_id=None,
        attempt=None,
        node=None,
        exit_code=code,
        termination_reason=reason,
        message=None if code is None else f"exited with code {code}",
        running_at=None,
        ended_at=None,
        finished_at=None,
        outputs=None,
    )


def test_failed_sets_are_grouped_by_why_and_say_first_what_they_have_in_common() -> None:
    error = Reason.CONTAINER_EXITED_WITH_ERROR
    sets = [failed(number, error, 1, seed=number, lr=0.5) for number in (1, 2, 3, 7)]
    sets += [failed(4, Reason.DEPENDENCY_FAILED, None, seed=4, lr=0.1)]
    assert [str(group) for group in failed_together(sets)] == [
        "4 jobs failed (lr=0.5; seed=1, 2, 3, 7): exited with code 1: jobs 1-3,7",
        "job 4 failed (seed=4 lr=0.1): dependency_failed",
    ]


def test_of_many_failed_sets_some_are_named() -> None:
    error = Reason.CONTAINER_EXITED_WITH_ERROR
    sets = [failed(2 * number, error, 1, seed=number) for number in range(1200)]
    assert [str(group) for group in failed_together(sets)] == [
        "1,200 jobs failed (seed=0, 1, 2, 3, 4 and 1,195 more): exited with code 1: "
        "jobs 0,2,4,6,8 and 1,195 more"
    ]
