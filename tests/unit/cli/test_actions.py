"""Users act on runs and jobs by command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.api.asking import place_gang
from tests.unit.api.conftest import Controller
from tests.unit.cli.conftest import Fairlead, PlayedNode, Result

PAIR = "type: task\nname: pair\nnodes: 2\ngang: false\nshare_nodes: true\ncommands: [work]\n"


async def of(start: Fairlead, *arguments: str) -> Result:
    return await (await start(*arguments)).ended()


@pytest.fixture
def pair(tmp_path: Path) -> str:
    path = tmp_path / "pair.yml"
    path.write_text(PAIR)
    return str(path)


async def test_a_run_is_suspended_and_resumed(start: Fairlead, task: str) -> None:
    await of(start, "apply", "-f", task, "-d")
    assert (await of(start, "suspend", "hello")).out == b"hello: submitted (suspended)\n"
    assert b"(suspended)" in (await of(start, "ps")).out
    assert b"suspended: no placements" in (await of(start, "inspect", "hello")).out
    resumed = await of(start, "resume", "hello", "--json")
    assert json.loads(resumed.out)["suspended"] is False


async def test_a_list_that_is_cut_says_so(start: Fairlead, task: str) -> None:
    for name in ("one", "two"):
        await of(start, "apply", "-f", task, "-d", "-n", name)
    cut, whole = await of(start, "ps", "--limit", "1"), await of(start, "ps", "--limit", "2")
    assert (cut.out.count(b"\n"), b"two" in cut.out) == (2, True)
    assert cut.err == "fairlead: these are the newest 1; --limit shows up to 1000\n"
    assert (whole.out.count(b"\n"), whole.err) == (3, "")


async def test_a_run_is_completed(start: Fairlead, task: str) -> None:
    await of(start, "apply", "-f", task, "-d")
    assert (await of(start, "complete", "hello")).out == b"hello: done\n"
    again = await of(start, "suspend", "hello")
    assert (again.status, "has ended (done) and cannot be suspended" in again.err) == (1, True)


async def test_a_group_is_scaled_and_its_jobs_are_named(start: Fairlead, pair: str) -> None:
    await of(start, "apply", "-f", pair, "-d")
    scaled = json.loads((await of(start, "scale", "pair", "--nodes", "3", "--json")).out)
    assert [job["cookie"] for job in scaled["jobs"]] == [0, 1, 2]
    assert b"0 of 3 jobs run" in (await of(start, "ps")).out
    assert (await of(start, "job", "abandon", "pair", "main/2")).status == 0
    assert b"main/2 is abandoned" in (await of(start, "inspect", "pair")).out


async def test_a_gang_is_not_scaled_and_says_why(start: Fairlead, tmp_path: Path) -> None:
    path = tmp_path / "gang.yml"
    path.write_text("type: task\nname: gang\nnodes: 2\ncommands: [work]\n")
    await of(start, "apply", "-f", str(path), "-d")
    refused = await of(start, "scale", "gang", "--nodes", "3")
    assert (refused.status, "is a gang" in refused.err) == (1, True)
    shown = (await of(start, "inspect", "gang")).out.decode()
    assert "INCARNATION" in shown


async def test_a_gang_that_is_not_whole_says_when_it_gives_up(
    start: Fairlead, controller: Controller, tmp_path: Path
) -> None:
    path = tmp_path / "gang.yml"
    path.write_text("type: task\nname: gang\nnodes: 2\nshare_nodes: true\ncommands: [work]\n")
    await of(start, "apply", "-f", str(path), "-d")
    await place_gang(controller)
    shown = (await of(start, "inspect", "gang")).out.decode()
    assert "0 of 2 ranks are there: main/0 has an allocation" in shown
    assert "; the gang releases its allocations at 20" in shown


async def test_a_job_is_aborted_and_interrupted_by_name(
    start: Fairlead, node: PlayedNode, task: str
) -> None:
    await of(start, "apply", "-f", task, "-d")
    waiting = await of(start, "job", "interrupt", "hello", "main/0")
    assert (waiting.status, "is not running" in waiting.err) == (1, True)
    await node.runs("hello")
    assert (await of(start, "job", "interrupt", "hello", "main/0")).status == 0
    aborted = json.loads((await of(start, "job", "abort", "hello", "0", "--json")).out)
    attempt = aborted["jobs"][0]["attempts"][0]
    assert attempt["interrupt_requested_at"] is not None
    assert "job_aborted_by_user" in [attempt["termination_reason"], *attempt["later_reasons"]]


async def test_a_name_is_kept_or_replaced_on_demand(start: Fairlead, task: str) -> None:
    await of(start, "apply", "-f", task, "-d")
    kept = await of(start, "apply", "-f", task, "-d", "--if-exists", "keep")
    assert (kept.status, kept.out) == (0, b"hello\n")
    assert "kept hello, which is already live (submitted); nothing was submitted" in kept.err
    replaced = await of(start, "apply", "-f", task, "-d", "--if-exists", "replace", "--json")
    stopped, live = sorted(
        json.loads((await of(start, "ps", "-a", "--json")).out)["runs"],
        key=lambda run: run["id"] == json.loads(replaced.out)["id"],
    )
    assert (stopped["status"], live["status"]) == ("terminated", "submitted")


async def test_a_run_that_is_replaced_is_followed_to_its_end_first(
    start: Fairlead, node: PlayedNode, task: str
) -> None:
    before = json.loads((await of(start, "apply", "-f", task, "-d", "--json")).out)
    await node.runs("hello")
    replacing = await start("apply", "-f", task, "-d", "--if-exists", "replace", "--json")
    await replacing.hears("is being stopped; waiting for its end")
    await node.ends("hello", 0)
    after = json.loads((await replacing.ended()).out)
    assert after["id"] != before["id"]
    stopped = json.loads((await of(start, "inspect", before["id"], "--json")).out)
    assert stopped["status"] == "terminated"


async def test_a_child_shows_its_parent_and_the_parent_its_child(
    start: Fairlead, task: str
) -> None:
    await of(start, "apply", "-f", task, "-d")
    child = await of(start, "apply", "-f", task, "-d", "-n", "child", "--parent", "hello")
    assert child.status == 0
    assert b"child of " in (await of(start, "inspect", "child")).out
    assert b"parent of child" in (await of(start, "inspect", "hello")).out


async def test_a_scheduled_run_is_left_to_its_triggers(start: Fairlead, tmp_path: Path) -> None:
    path = tmp_path / "nightly.yml"
    path.write_text("type: task\nname: nightly\nschedule: 0 3 * * *\ncommands: [work]\n")
    result = await of(start, "apply", "-f", str(path))
    assert (result.status, "nightly runs next at " in result.err) == (0, True)
    assert b"scheduled 0 3 * * * (UTC); next " in (await of(start, "inspect", "nightly")).out
    assert b"runs next at" in (await of(start, "ps")).out
