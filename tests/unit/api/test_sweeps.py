"""A sweep over the API: its sets are listed, chosen, stopped and retried."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from controller.api.views import sweep_view
from controller.lifecycle.model import Group, JobSpec
from controller.lifecycle.reports import SetsStopped
from controller.lifecycle.sweeps.ended import folded
from fairlead.model.sweep import ParameterSets, SweepPlan
from tests.unit.api.asking import HELLO, error_of, submit
from tests.unit.cli.conftest import PlayedNode, node
from tests.unit.lifecycle.play import Play

__all__ = ["node"]

API = TestClient[Any, Any]
SWEEP = {
    **HELLO,
    "sweep": {"matrix": {"lr": [0.1, 0.2], "seed": "0..2"}, "max_parallel": 1},
}


async def sets(api: API, **query: str) -> list[dict[str, Any]]:
    async with api.get("/v1/runs/hello/sets", params=query) as answer:
        assert answer.status == 200, await answer.text()
        found: list[dict[str, Any]] = (await answer.json())["sets"]
        return found


async def post(api: API, what: str, **body: object) -> dict[str, Any]:
    async with api.post(f"/v1/runs/hello/sets/{what}", json=body) as answer:
        assert answer.status == 200, await answer.text()
        run: dict[str, Any] = await answer.json()
        return run


async def test_a_job_of_a_set_that_has_ended_is_not_abandoned(api: API, node: PlayedNode) -> None:
    await submit(api, name="hello", configuration=SWEEP)
    await node.runs("hello")
    await node.ends("hello", 0)
    async with api.post("/v1/runs/hello/jobs/0/abandon", json={}) as answer:
        assert await error_of(answer) == (409, "ended", "job")
    async with api.post("/v1/runs/hello/jobs/1/abandon", json={}) as answer:
        assert answer.status == 200
    assert [one["status"] for one in await sets(api)][:2] == ["done", "stopped"]


async def test_a_sweep_tells_how_far_it_is(api: API, node: PlayedNode) -> None:
    made = await submit(api, name="hello", configuration=SWEEP)
    assert (made["sweep"]["total"], made["sweep"]["names"]) == (6, ["lr", "seed"])
    for code in (0, 3, 0):
        await node.runs("hello")
        await node.ends("hello", code)
    found = await sets(api)
    assert [one["status"] for one in found] == [
        "done",
        "failed",
        "done",
        "active",
        *["waiting"] * 2,
    ]
    assert found[1]["parameters"] == {"lr": 0.1, "seed": 1}
    assert (found[1]["exit_code"], found[4]["jobs"]) == (3, [])
    async with api.get("/v1/runs") as answer:
        listed = (await answer.json())["runs"][0]
    assert {name: listed["sweep"][name] for name in ("done", "failed", "waiting")} == {
        "done": 2,
        "failed": 1,
        "waiting": 2,
    }
    assert listed["sweep"]["seconds_left"] is not None


async def test_the_run_itself_has_the_jobs_of_ended_sets_too(api: API, node: PlayedNode) -> None:
    await submit(api, name="hello", configuration=SWEEP)
    await node.runs("hello")
    await node.prints("hello", b"out")
    await node.ends("hello", 0)
    async with api.get("/v1/runs/hello") as answer:
        assert [job["index"] for job in (await answer.json())["jobs"]] == [0, 1]
    async with api.get("/v1/runs/hello/logs", params={"job": "0"}) as answer:
        assert answer.status == 200
    async with api.get("/v1/runs/hello/outputs", params={"job": "main/0"}) as answer:
        assert answer.status == 200


async def test_sets_are_chosen_by_number_value_and_status(api: API) -> None:
    await submit(api, name="hello", configuration=SWEEP)

    async def numbers(**query: str) -> list[int]:
        return [one["number"] for one in await sets(api, **query)]

    assert await numbers(which="0,3-4") == [0, 3, 4]
    assert await numbers(which="seed=1") == [1, 4]
    assert await numbers(which="lr=0.2,seed=1") == [4]
    assert await numbers(which="lr=2e-1,seed=1.0") == [4]
    assert await numbers(which="lr=nan") == []
    assert await numbers(which="0-3,seed=0") == [0, 3]
    assert await numbers(status="active") == [0]
    assert await numbers(limit="2", cursor="1") == [2, 3]


async def test_a_value_with_a_comma_is_chosen_in_double_quotes(api: API) -> None:
    values = ["a,b", "a", '"q"', '"', " sp ", "", "x=y,z", 'say "a,b"']
    sweep = {"matrix": {"v": values, "seed": [0, 1]}}
    await submit(api, name="hello", configuration={**HELLO, "sweep": sweep})
    for which, values_found in {
        'v="a,b"': ["a,b"],
        'v="a,b",seed=1': ["a,b"],
        'seed=0,v="a"': ["a"],
        'v="q"': ['"q"'],
        'v="': ['"'],
        'v=",seed=1': ['"'],
        'v=" sp "': [" sp "],
        "v=": [""],
        'v=""': [""],
        'v="x=y,z"': ["x=y,z"],
        'v=say "a,b"': ['say "a,b"'],
    }.items():
        found = await sets(api, which=which)
        assert list(dict.fromkeys(one["parameters"]["v"] for one in found)) == values_found, which
        assert len(found) == (1 if "seed" in which else 2)


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"which": "6"}, (404, "not_found", "which")),
        ({"which": "3-1"}, (404, "not_found", "which")),
        ({"which": "size=1"}, (404, "not_found", "which")),
        ({"which": "all"}, (400, "invalid", "which")),
        ({"which": "lr=a,b"}, (400, "invalid", "which")),
        ({"which": 'lr="a,b'}, (400, "invalid", "which")),
        ({"which": ""}, (400, "invalid", "which")),
        ({"status": "lost"}, (400, "invalid", "status")),
        ({"cursor": "x"}, (400, "invalid", "cursor")),
    ],
)
async def test_a_choice_that_chooses_nothing_is_refused(
    api: API, query: dict[str, str], error: tuple[int, str, str]
) -> None:
    await submit(api, name="hello", configuration=SWEEP)
    async with api.get("/v1/runs/hello/sets", params=query) as answer:
        assert await error_of(answer) == error


async def test_sets_are_stopped_and_retried(api: API, node: PlayedNode) -> None:
    await submit(api, name="hello", configuration=SWEEP)
    assert (await post(api, "stop", which="seed=2"))["sweep"]["stopped"] == 2
    await node.runs("hello")
    await node.ends("hello", 1)
    assert (await post(api, "retry"))["sweep"] | {"seconds_left": 0} == {
        "names": ["lr", "seed"],
        "total": 6,
        "nodes": 1,
        "waiting": 3,
        "active": 1,
        "done": 0,
        "failed": 0,
        "stopped": 2,
        "max_parallel": 1,
        "stop_after_failures": None,
        "seconds_left": 0,
        "waits_for": None,
    }
    assert (await post(api, "retry", which="2"))["sweep"]["stopped"] == 1
    assert (await post(api, "parallel", max_parallel=3))["sweep"]["active"] == 3
    assert [one["number"] for one in await sets(api, status="active")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("what", "body", "error"),
    [
        ("retry", {}, (409, "no_such_set", "which")),
        ("retry", {"which": "0"}, (409, "no_such_set", "which")),
        ("stop", {"which": "7"}, (404, "not_found", "which")),
        ("parallel", {"max_parallel": 0}, (400, "invalid", "max_parallel")),
    ],
)
async def test_a_wish_for_sets_that_cannot_be_meant_is_refused(
    api: API, what: str, body: dict[str, object], error: tuple[int, str, str]
) -> None:
    await submit(api, name="hello", configuration=SWEEP)
    async with api.post(f"/v1/runs/hello/sets/{what}", json=body) as answer:
        assert await error_of(answer) == error


async def test_a_run_that_is_no_sweep_has_no_sets(api: API) -> None:
    await submit(api, name="hello")
    async with api.get("/v1/runs/hello/sets") as answer:
        assert await error_of(answer) == (409, "no_sweep", "run")
    async with api.post("/v1/runs/hello/sets/retry", json={}) as answer:
        assert await error_of(answer) == (409, "no_sweep", "run")


async def test_a_sweep_is_not_scaled_as_a_group(api: API) -> None:
    await submit(api, name="hello", configuration=SWEEP)
    async with api.post("/v1/runs/hello/scale", json={"group": "main", "nodes": 3}) as answer:
        assert await error_of(answer) == (409, "sweep", "run")


def seconds_left(play: Play) -> float | None:
    view = sweep_view(folded(play.state), play.now)
    assert view is not None
    return view.seconds_left


def ten_sets(*, reuse_container: bool = False) -> Play:
    plan = SweepPlan(
        sets=ParameterSets.of(["seed"], [[number] for number in range(10)]),
        max_parallel=4,
        reuse_container=reuse_container,
    )
    return Play(sweep=plan, groups=[Group(name="main", nodes=1)], spec=JobSpec(image="busybox"))


def test_the_estimate_counts_those_that_run_and_not_those_in_the_queue() -> None:
    play = ten_sets()
    play.to_running(0)
    play.wait(10)
    play.send(play.exited(0))
    play.send(play.removed(0))
    assert seconds_left(play) == 90
    play.to_running(1)
    assert seconds_left(play) == 90
    play.wait(5)
    assert seconds_left(play) == 85


def test_jobs_of_one_container_are_estimated_by_how_many_end_in_a_time() -> None:
    """The starts and ends of a batch come together, so that each job seems to last as long."""
    play = ten_sets(reuse_container=True)
    for number in range(4):
        play.to_running(number)
    play.wait(10)
    for number in range(4):
        play.send(play.exited(number))
        play.send(play.removed(number))
    assert seconds_left(play) == 15


def test_a_set_that_takes_longer_than_others_is_not_about_to_end() -> None:
    play = ten_sets()
    for number in range(9):
        play.to_running(number)
        play.wait(1)
        play.send(play.exited(number))
        play.send(play.removed(number))
    play.to_running(9)
    play.wait(300)
    assert seconds_left(play) == 300


def test_a_set_that_was_stopped_says_nothing_of_how_long_one_takes() -> None:
    play = ten_sets()
    play.to_running(0)
    play.send(SetsStopped(run_id=play.run_id, sets=((0, 0),), by="ada"))
    play.send(play.exited(0))
    play.send(play.removed(0))
    assert seconds_left(play) is None
