"""`retry` of a sweep that has ended: its sets become one new run, from what is stored."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient

from controller.lifecycle.reports import StopRequested
from tests.unit.api.asking import HELLO, submit
from tests.unit.api.conftest import HOST_KEY, USER_TOKEN, Controller
from tests.unit.cli.conftest import PlayedNode, node

__all__ = ["node"]

API = TestClient[Any, Any]
CONTENT = b"print()"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
SWEEP = {
    **HELLO,
    "commands": ["echo ${{ params.seed }}"],
    "env": {"MODE": "fast"},
    "sweep": {"matrix": {"seed": "1..3"}, "max_parallel": 1},
}


async def run_to_its_end(
    api: API, node: PlayedNode, *codes: int, **fields: object
) -> dict[str, Any]:
    """Return a sweep whose sets have ended with these exit codes."""
    made = await submit(api, name="hello", configuration={**SWEEP, **fields})
    await play_to_the_end(node, *codes)
    async with api.get(f"/v1/runs/{made['id']}") as answer:
        found: dict[str, Any] = await answer.json()
    assert found["finished_at"] is not None
    return found


async def play_to_the_end(node: PlayedNode, *codes: int) -> None:
    for code in codes:
        await node.runs("hello")
        await node.ends("hello", code)


async def retried(
    api: API, run: dict[str, Any], *, headers: dict[str, str] | None = None, **body: object
) -> dict[str, Any]:
    path = f"/v1/runs/{run['id']}/sets/retry"
    async with api.post(path, json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


async def refused(api: API, run: dict[str, Any], **body: object) -> tuple[int, str, str]:
    async with api.post(f"/v1/runs/{run['id']}/sets/retry", json=body) as answer:
        error = (await answer.json())["error"]
    return answer.status, error["code"], error["message"]


async def seeds(api: API, run: dict[str, Any]) -> list[object]:
    async with api.get(f"/v1/runs/{run['id']}/sets") as answer:
        return [one["parameters"]["seed"] for one in (await answer.json())["sets"]]


async def configuration(api: API, run: dict[str, Any]) -> dict[str, Any]:
    async with api.get(f"/v1/runs/{run['id']}/submission") as answer:
        found: dict[str, Any] = (await answer.json())["configuration"]
        return found


async def runs(api: API) -> list[str]:
    async with api.get("/v1/runs", params={"all": "true"}) as answer:
        return [one["id"] for one in (await answer.json())["runs"]]


async def test_the_failed_sets_of_an_ended_sweep_are_a_new_run(api: API, node: PlayedNode) -> None:
    sweep = {
        "matrix": {"seed": "1..3"},
        "stop_after_failures": "90%",
        "reuse_container": True,
        "max_parallel": 1,
    }
    old = await run_to_its_end(api, node, 1, 0, 1, sweep=sweep)
    new = await retried(api, old)
    assert new["id"] != old["id"]
    assert (new["name"], new["status"], new["user"]) == ("hello", "submitted", old["user"])
    assert await seeds(api, new) == [1, 3]
    stored = await configuration(api, new)
    bounds = {name: value for name, value in sweep.items() if name != "matrix"}
    assert stored["sweep"] == {**bounds, "sets": {"names": ["seed"], "rows": [[1], [3]]}}
    assert {name: stored[name] for name in ("commands", "env")} == {
        name: SWEEP[name] for name in ("commands", "env")
    }
    async with api.get(f"/v1/runs/{old['id']}") as answer:
        assert (await answer.json())["sweep"]["failed"] == 2


async def test_asked_twice_at_once_there_is_one_new_run(api: API, node: PlayedNode) -> None:
    old = await run_to_its_end(api, node, 1, 0, 0)
    first, second = await asyncio.gather(retried(api, old), retried(api, old))
    again = await retried(api, old)
    assert first["id"] == second["id"] == again["id"]
    assert await runs(api) == [first["id"], old["id"]]


async def test_sets_of_which_the_new_run_has_ended_too_are_another_one(
    api: API, node: PlayedNode
) -> None:
    old = await run_to_its_end(api, node, 1, 0, 0)
    made = []
    for _ in range(3):
        made.append((await retried(api, old))["id"])
        await play_to_the_end(node, 1)
    assert await runs(api) == [*reversed(made), old["id"]]


async def test_stopped_sets_are_chosen_by_number_or_value(api: API, node: PlayedNode) -> None:
    made = await submit(api, name="hello", configuration=SWEEP)
    async with api.post("/v1/runs/hello/sets/stop", json={"which": "seed=3"}) as answer:
        assert answer.status == 200
    await play_to_the_end(node, 1, 0)
    assert await seeds(api, await retried(api, made, which="0,2")) == [1, 3]


async def test_the_new_run_has_the_bound_that_its_user_chose_last(
    api: API, node: PlayedNode
) -> None:
    old = await submit(api, name="hello", configuration=SWEEP)
    async with api.post("/v1/runs/hello/sets/parallel", json={"max_parallel": None}) as answer:
        assert answer.status == 200
    await play_to_the_end(node, 1, 1, 1)
    new = await retried(api, old)
    assert (new["sweep"]["active"], new["sweep"]["max_parallel"]) == (3, None)


async def test_uploaded_files_are_those_of_the_ended_run(
    api: API, node: PlayedNode, controller: Controller, tmp_path: Path
) -> None:
    place = f"/v1/blobs/{DIGEST}"
    async with api.put(place, data=CONTENT) as answer:
        assert answer.status == 200
    files = [{"local_path": "a", "path": "/a", "uploaded": [DIGEST, "/"]}]
    old = await run_to_its_end(api, node, 1, 0, 0, files=files)
    new = await retried(api, old)
    assert controller.pipeline.runs[new["id"]].jobs[0].spec.blobs == (DIGEST,)
    await play_to_the_end(node, 1)
    _remove(tmp_path)
    status, code, message = await refused(api, old)
    assert (status, code) == (409, "not_uploaded")
    assert "is missing or expired" in message
    assert f"`fairlead apply -f FILE --failed-of {old['id']}`" in message


def _remove(folder: Path) -> None:
    for path in folder.rglob(DIGEST):
        path.unlink()


async def test_a_value_that_was_not_kept_is_named(api: API, node: PlayedNode) -> None:
    secret = {"API_TOKEN": "canary-1", "MODE": "fast"}
    old = await run_to_its_end(api, node, 1, 0, 0, env=secret)
    status, code, message = await refused(api, old)
    assert (status, code) == (409, "not_kept")
    assert "the value of env.API_TOKEN may be secret, so it was not kept" in message
    assert "canary" not in message


async def test_a_stored_secret_is_read_again_by_its_name(api: API, node: PlayedNode) -> None:
    async with api.put("/v1/secrets/hub", json={"value": "canary-2"}) as answer:
        assert answer.status == 200
    names = {"HF_TOKEN": "${{ secrets.hub }}"}
    old = await run_to_its_end(api, node, 1, 0, 0, secrets=names, env=names)
    assert (await configuration(api, await retried(api, old)))["secrets"] == names


async def test_nothing_failed_is_a_sentence(api: API, node: PlayedNode) -> None:
    old = await run_to_its_end(api, node, 0, 0, 0)
    assert await refused(api, old) == (409, "no_such_set", "no parameter set failed")
    status, code, _ = await refused(api, old, which="1")
    assert (status, code) == (409, "no_such_set")


async def test_another_live_run_keeps_its_name(api: API, node: PlayedNode) -> None:
    old = await run_to_its_end(api, node, 1, 0, 0)
    await submit(api, name="hello")
    status, code, message = await refused(api, old)
    assert (status, code) == (409, "name_taken")
    assert f"`fairlead apply -f FILE --name NAME --failed-of {old['id']}`" in message


async def test_a_run_that_is_ending_is_retried_after_its_end(
    api: API, node: PlayedNode, controller: Controller
) -> None:
    made = await submit(api, name="hello", configuration=SWEEP)
    await node.runs("hello")
    await node.ends("hello", 1)
    await node.runs("hello")
    await controller.pipeline.report(StopRequested(run_id=made["id"], abort=False, by="admin"))
    status, code, message = await refused(api, made)
    assert (status, code) == (409, "ending")
    assert "retry its sets once it has ended" in message
    await node.ends("hello", 0)
    assert await seeds(api, await retried(api, made)) == [1]


async def test_an_admin_retries_a_sweep_whose_user_was_removed_as_an_own_run(
    api: API, node: PlayedNode, controller: Controller
) -> None:
    """Without the keys of that user, which would open the jobs of the admin."""
    ada = {"Authorization": f"Bearer {USER_TOKEN}"}
    body = {"name": "hello", "configuration": SWEEP, "ssh_keys": [HOST_KEY]}
    async with api.post("/v1/runs", json=body, headers=ada) as answer:
        assert answer.status == 201, await answer.text()
        made: dict[str, Any] = await answer.json()
    await play_to_the_end(node, 1, 1, 0)
    own = await retried(api, made, which="0", headers=ada)
    content = controller.pipeline.runs[own["id"]].sweep
    assert content is not None
    assert content.spec.ssh_keys == (HOST_KEY,)
    await play_to_the_end(node, 1)
    async with api.delete("/v1/users/ada") as answer:
        assert answer.status == 200, await answer.text()
    new = await retried(api, made)
    assert (new["user"], await seeds(api, new)) == ("admin", [1, 2])
    content = controller.pipeline.runs[new["id"]].sweep
    assert content is not None
    assert content.spec.ssh_keys == ()


async def test_only_its_user_and_admins_retry(api: API, node: PlayedNode) -> None:
    old = await run_to_its_end(api, node, 1, 0, 0)
    ada = {"Authorization": f"Bearer {USER_TOKEN}"}
    async with api.post(f"/v1/runs/{old['id']}/sets/retry", json={}, headers=ada) as answer:
        assert answer.status in (403, 404)
    assert await runs(api) == [old["id"]]


async def test_what_the_sets_have_waited_for_is_not_waited_for_again(
    api: API, node: PlayedNode
) -> None:
    await submit(api, name="first")
    waits = {"after": ["first"], "start_before": "4h"}
    made = await submit(api, name="hello", configuration={**SWEEP, **waits})
    await node.runs("first")
    await node.ends("first", 0)
    await play_to_the_end(node, 1, 0, 0)
    new = await retried(api, made)
    assert await configuration(api, new) == {
        **SWEEP,
        "sweep": {"max_parallel": 1, "sets": {"names": ["seed"], "rows": [[1]]}},
    }


async def test_sets_that_never_began_wait_again_for_what_their_run_waited_for(
    api: API, node: PlayedNode
) -> None:
    await submit(api, name="first")
    made = await submit(api, name="hello", configuration={**SWEEP, "after": ["first"]})
    await node.runs("first")
    await node.ends("first", 1)
    second = await submit(api, name="first")
    new = await retried(api, made, which="0-2")
    assert await configuration(api, new) | {"sweep": 0} == {**SWEEP, "after": ["first"], "sweep": 0}
    assert [one["run_id"] for one in new["after"]] == [second["id"]]


async def evaluated(
    api: API, node: PlayedNode, first: tuple[int, ...], *codes: int
) -> dict[str, Any]:
    """Return a sweep that has waited set for set for another, after both have ended."""
    await submit(api, name="first", configuration=SWEEP)
    same = {"after": [{"run": "first", "job": "same"}]}
    made = await submit(api, name="hello", configuration={**SWEEP, **same})
    for exit_code in first:
        await node.runs("first")
        await node.ends("first", exit_code)
    await play_to_the_end(node, *codes)
    return made


async def waits(api: API, run: dict[str, Any]) -> list[tuple[object, str]]:
    async with api.get(f"/v1/runs/{run['id']}/sets") as answer:
        sets = (await answer.json())["sets"]
    return [(one["parameters"]["seed"], one["status"]) for one in sets]


async def test_sets_are_retried_without_those_whose_predecessor_must_be_retried_first(
    api: API, node: PlayedNode
) -> None:
    made = await evaluated(api, node, (0, 1, 0), 1, 0)
    status, code, message = await refused(api, made, which="1")
    assert (status, code) == (409, "predecessor_first")
    assert message.startswith("parameter set seed=2 waits for set 1 of run first (")
    assert "which failed: retry that run first, `fairlead retry " in message
    assert "--jobs 1`" in message
    new = await retried(api, made)
    assert await waits(api, new) == [(1, "active")]
    (why,) = new["left_out"]
    assert why.startswith("not retried: 1; of what they wait for, 1 of run first (")
    assert why.endswith("first, then `fairlead retry hello --jobs 1`")


async def waiting_live(api: API, node: PlayedNode) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a sweep that has ended with a failed set, and a live one that lost its set by it."""
    first = await submit(api, name="first", configuration=SWEEP)
    same = {"after": [{"run": "first", "job": "same"}]}
    made = await submit(api, name="hello", configuration={**SWEEP, **same})
    for exit_code in (0, 1, 0):
        await node.runs("first")
        await node.ends("first", exit_code)
    await node.runs("hello")
    assert await waits(api, made) == [(1, "active"), (2, "failed"), (3, "waiting")]
    return first, made


async def test_a_set_of_a_live_sweep_waits_for_the_new_run_in_which_its_predecessor_is_retried(
    api: API, node: PlayedNode
) -> None:
    first, made = await waiting_live(api, node)
    new = await retried(api, first)
    again = await retried(api, made)
    assert (again["id"], again["left_out"]) == (made["id"], [])
    assert [one["run_id"] for one in again["after"]] == [new["id"]]
    await node.ends("hello", 0)
    await play_to_the_end(node, 0)
    assert await waits(api, made) == [(1, "done"), (2, "waiting"), (3, "done")]
    await node.runs("first")
    await node.ends("first", 0)
    await play_to_the_end(node, 0)
    assert await waits(api, made) == [(1, "done"), (2, "done"), (3, "done")]
    async with api.get("/v1/events", params={"run": made["id"]}) as answer:
        messages = [one["message"] for one in (await answer.json())["events"]]
    assert f"1 set retried by admin, after run first ({new['id']})" in messages


async def test_a_live_sweep_sees_that_the_new_run_has_ended_already(
    api: API, node: PlayedNode
) -> None:
    first, made = await waiting_live(api, node)
    await retried(api, first)
    await node.runs("first")
    await node.ends("first", 0)
    await retried(api, made, which="seed=2")
    await node.ends("hello", 0)
    await play_to_the_end(node, 0, 0)
    assert await waits(api, made) == [(1, "done"), (2, "done"), (3, "done")]


async def test_a_set_that_the_new_run_has_lost_too_waits_for_the_next_one(
    api: API, node: PlayedNode
) -> None:
    first, made = await waiting_live(api, node)
    for exit_code in (1, 0):
        first = await retried(api, first)
        await retried(api, made)
        await node.runs("first")
        await node.ends("first", exit_code)
    await node.ends("hello", 0)
    await play_to_the_end(node, 0, 0)
    assert await waits(api, made) == [(1, "done"), (2, "done"), (3, "done")]


async def test_a_live_sweep_names_the_set_whose_predecessor_was_not_retried(
    api: API, node: PlayedNode
) -> None:
    first, made = await waiting_live(api, node)
    status, code, message = await refused(api, made)
    assert (status, code) == (409, "predecessor_first")
    assert f"`fairlead retry {first['id']} --jobs 1`" in message
    await node.ends("hello", 1)
    again = await retried(api, made)
    assert await waits(api, again) == [(1, "waiting"), (2, "failed"), (3, "active")]
    (why,) = again["left_out"]
    assert f"1 of run first ({first['id']}), each failed" in why


async def test_a_set_does_not_wait_for_a_run_that_waits_for_it(api: API, node: PlayedNode) -> None:
    first, made = await waiting_live(api, node)
    same = {"after": [{"run": "hello", "job": "same"}]}
    await submit(api, name="first", configuration={**SWEEP, **same})
    assert (await refused(api, made))[1] == "predecessor_first"
    async with api.get(f"/v1/runs/{made['id']}") as answer:
        assert [one["run_id"] for one in (await answer.json())["after"]] == [first["id"]]


async def test_sets_that_failed_begin_and_those_that_never_did_wait_for_the_retried_predecessor(
    api: API, node: PlayedNode
) -> None:
    made = await evaluated(api, node, (0, 1, 0), 1, 0)
    async with api.get("/v1/runs/first") as answer:
        first = await retried(api, await answer.json())
    new = await retried(api, made)
    assert [one["run_id"] for one in new["after"]] == [first["id"]]
    # seed=1 has no set in the new predecessor: it has begun before, and waits for nothing.
    assert await waits(api, new) == [(1, "active"), (2, "waiting")]
    await node.runs("first")
    await node.ends("first", 0)
    await play_to_the_end(node, 0, 0)
    assert await waits(api, new) == [(1, "done"), (2, "done")]
    assert (await retried(api, made))["id"] != new["id"]


async def test_a_set_that_never_began_and_whose_predecessor_is_done_begins(
    api: API, node: PlayedNode
) -> None:
    """Another run of that name, without the set, takes nothing back."""
    await submit(api, name="first", configuration=SWEEP)
    same = {"after": [{"run": "first", "job": "same"}]}
    made = await submit(api, name="hello", configuration={**SWEEP, **same})
    for _ in range(3):
        await node.runs("first")
        await node.ends("first", 0)
    async with api.post("/v1/runs/hello/sets/stop", json={"which": "1,2"}) as answer:
        assert answer.status == 200
    await play_to_the_end(node, 1)
    other = {**SWEEP, "sweep": {"matrix": {"seed": [2]}}}
    await submit(api, name="first", configuration=other)
    new = await retried(api, made, which="0-2")
    assert await waits(api, new) == [(1, "active"), (2, "waiting"), (3, "waiting")]
    await play_to_the_end(node, 0)
    assert await waits(api, new) == [(1, "done"), (2, "waiting"), (3, "active")]


async def test_the_sets_of_a_file_are_shown_with_what_was_submitted(api: API) -> None:
    """`fairlead rerun` submits it again."""
    rows = {"names": ["seed"], "rows": [[1], ["a b"]]}
    made = await submit(api, configuration={**SWEEP, "sweep": {"file": "p.csv", "sets": rows}})
    assert (await configuration(api, made))["sweep"] == {"sets": rows}
    await submit(api, configuration=await configuration(api, made), name="again")
    async with api.get("/v1/runs/again/sets") as answer:
        assert [one["parameters"]["seed"] for one in (await answer.json())["sets"]] == [1, "a b"]
