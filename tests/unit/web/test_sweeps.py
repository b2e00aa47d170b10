"""The table of a sweep's parameter sets on its page."""

from __future__ import annotations

import json
import re

from controller.lifecycle.reports import LinksFound
from controller.web.app import _done
from controller.web.page import Done
from fairlead.model.job_links import JobLink, LinkKind
from tests.unit.api.conftest import Controller
from tests.unit.cli.conftest import PlayedNode, node
from tests.unit.web.conftest import Browser, submit

__all__ = ["node"]

SWEEP = {"matrix": {"lr": [0.2, 0.1], "model": ["<b>", "small"]}, "max_parallel": 1}


def numbers(page: str) -> list[int]:
    """Return the sets that have rows, in their order."""
    return [int(one) for one in re.findall(r'<td class="name job">(?:<a [^>]*>)?(\d+)', page)]


async def test_the_page_of_a_sweep_shows_its_sets_by_parameters(
    admin: Browser, node: PlayedNode
) -> None:
    run = await submit(admin, sweep=SWEEP)
    await node.runs("train")
    await node.ends("train", 3)
    page = await (await admin.open(f"/dashboard/runs/{run['id']}")).text()
    assert numbers(page) == [0, 1, 2, 3]
    assert "&lt;b&gt;" in page
    assert '<td class="mono" data-label="model"><b>' not in page
    assert "0 of 4 done, 1 failed" in page
    assert "exit code 3" in page


async def test_sets_are_sorted_and_filtered_by_parameter(admin: Browser) -> None:
    run = await submit(admin, sweep=SWEEP)
    path = f"/dashboard/runs/{run['id']}"
    assert numbers(await admin.fragment(f"{path}?sort=param.lr", "jobs")) == [2, 3, 0, 1]
    assert numbers(await admin.fragment(f"{path}?sort=-param.lr", "jobs")) == [1, 0, 3, 2]
    assert numbers(await admin.fragment(f"{path}?find=model=small", "jobs")) == [1, 3]
    assert numbers(await admin.fragment(f"{path}?state=active", "jobs")) == [0]
    wrong = await admin.fragment(f"{path}?find=size=3", "jobs")
    assert numbers(wrong) == []
    assert "is no parameter of this sweep" in wrong
    assert (await admin.open(f"{path}?sort=price")).status == 400
    assert (await admin.open(f"{path}?state=lost")).status == 400


async def test_a_user_acts_on_sets_from_the_table(admin: Browser, node: PlayedNode) -> None:
    run = await submit(admin, sweep=SWEEP)
    path = f"/dashboard/runs/{run['id']}"
    await node.runs("train")
    await node.ends("train", 1)
    assert (await admin.act(f"{path}/sets/retry", which="0")).status == 204
    assert numbers(await admin.fragment(f"{path}?state=waiting", "jobs")) == [0, 2, 3]
    assert (await admin.act(f"{path}/sets/stop", which="model=small")).status == 204
    assert numbers(await admin.fragment(f"{path}?state=stopped", "jobs")) == [1, 3]
    assert (await admin.act(f"{path}/parallel", max_parallel="2")).status == 204
    assert (await admin.act(f"{path}/parallel", max_parallel="many")).status == 400
    assert (await admin.act(f"{path}/sets/burn", which="0")).status == 400


async def test_the_sets_of_an_ended_sweep_are_retried_as_a_new_run(
    admin: Browser, node: PlayedNode
) -> None:
    run = await submit(admin, sweep=SWEEP, env={})
    path = f"/dashboard/runs/{run['id']}"
    for code in (1, 0, 0, 0):
        await node.runs("train")
        await node.ends("train", code)
    table = await admin.fragment(path, "jobs")
    assert 'hx-confirm="Retry parameter set 0 as a new run?"' in table
    assert 'hx-confirm="Retry all that failed as a new run?"' in table
    assert "sets/stop" not in table
    answer = await admin.act(f"{path}/sets/retry", which="")
    assert answer.status == 204
    there = answer.headers["HX-Redirect"]
    assert there != path
    assert numbers(await admin.fragment(there, "jobs")) == [0]
    assert (await admin.act(f"{path}/sets/retry", which="1")).status == 409


def test_a_long_list_of_sets_stays_below_what_clients_take_as_a_header() -> None:
    """aiohttp's client, by which a follower asks the leader, takes 8,190 bytes."""
    answer = _done(Done(message="ü" * 100_000))
    assert len(answer.headers["HX-Trigger"]) < 8190
    short = json.loads(_done(Done(message="ü" * 500)).headers["HX-Trigger"])
    assert short == {"fairlead:done": {"message": "ü" * 500}}


async def test_a_user_acts_on_no_sets_of_others(admin: Browser, ada: Browser) -> None:
    run = await submit(admin, sweep=SWEEP)
    answer = await ada.act(f"/dashboard/runs/{run['id']}/sets/stop", which="0")
    assert answer.status == 404


async def test_the_log_of_an_ended_set_is_offered_when_the_address_names_it(
    admin: Browser, node: PlayedNode
) -> None:
    run = await submit(admin, sweep=SWEEP)
    attempt = await node.runs("train")
    await node.ends("train", 0)
    path = f"/dashboard/runs/{run['id']}"
    assert attempt not in await admin.fragment(path, "offered")
    assert attempt in await admin.fragment(f"{path}?attempt={attempt}", "offered")


async def test_a_link_that_a_job_of_a_set_printed_stands_in_its_row(
    admin: Browser, node: PlayedNode, controller: Controller
) -> None:
    run = await submit(admin, sweep=SWEEP)
    attempt = await node.runs("train")
    link = JobLink(kind=LinkKind.WANDB, url="https://wandb.ai/ada/m/runs/1?a=1&b=<i>")
    found = LinksFound(run_id=run["id"], attempt_id=attempt, links=(link,))
    await controller.pipeline.report(found)
    page = await admin.fragment(f"/dashboard/runs/{run['id']}", "jobs")
    assert 'href="https://wandb.ai/ada/m/runs/1?a=1&amp;b=&lt;i&gt;" target="_blank"' in page
    assert "<i>" not in page
