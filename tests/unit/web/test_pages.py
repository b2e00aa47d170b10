"""What the pages show, and to whom."""

from __future__ import annotations

import asyncio
import html
import json
import re
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from controller.lifecycle.events import Event, EventKind
from controller.lifecycle.model import Occurrence
from controller.store.base import Changes
from controller.web.page import dated
from controller.web.pages.durations import lasting
from controller.web.pages.run import occurrence_rows, sentence_of
from controller.web.pages.runs import gpus_of
from controller.web.states import LOOKS, badge, stylesheet
from fairlead.model.reasons import RunReason
from fairlead.model.statuses import AttemptStatus, IrisState, RunStatus
from fairlead.wire.shim import GpuRequest
from tests.support.attempts import attempt_with
from tests.unit.api.conftest import USER_TOKEN, Controller
from tests.unit.store.samples import a_run
from tests.unit.web.conftest import Browser, submit

XSS = "<script>alert(1)</script>"


async def test_the_page_of_runs_says_first_what_to_do(admin: Browser) -> None:
    assert "fairlead apply" in await (await admin.open("/dashboard/runs")).text()


async def test_a_run_is_listed_with_its_state_and_why_it_waits(admin: Browser) -> None:
    run = await submit(admin)
    await _told_why(admin, run["id"])

    rows = await admin.fragment("/dashboard/runs", "rows")

    assert f'href="/dashboard/runs/{run["id"]}"' in rows
    assert "status-pending" in rows
    assert "place 1 in the queue: no node is connected" in rows.lower()


def test_a_run_tells_which_gpus_it_holds_and_waits_for() -> None:
    run = a_run("r", user="ada", status=RunStatus.RUNNING)
    job, attempt = run.jobs[0], replace(run.jobs[0].attempts[0], status=AttemptStatus.RUNNING)
    wants = replace(job.spec, resources=replace(job.spec.resources, gpu=GpuRequest(count=8)))
    waits = replace(job, spec=wants, attempts=(attempt_with(attempt, gpus=()),))
    holds = replace(waits, attempts=(attempt_with(attempt, gpus=tuple("abcdefgh")),))
    ended = replace(holds, attempts=(replace(attempt, status=AttemptStatus.DONE),))

    every = ((waits,), (holds,), (holds, waits), (ended,))
    told = [gpus_of(replace(run, jobs=jobs)) for jobs in every]

    assert told == ["0 of 8", "8", "8 of 16", ""]


async def test_a_run_with_many_events_shows_the_latest_and_leads_to_the_older(
    admin: Browser, controller: Controller
) -> None:
    run = await submit(admin)
    noted = tuple(
        Event(
            run_id=run["id"], kind=EventKind.LATER_REASON, cause="test", at=1.0, message=f"n{at:03}"
        )
        for at in range(250)
    )
    await controller.store.commit(Changes(events=noted))

    shown = await admin.fragment(f"/dashboard/runs/{run['id']}", "events")
    older = shown.split("/dashboard/events?")[1].split('"')[0].replace("&amp;", "&")
    before = await admin.fragment(f"/dashboard/events?{older}", "rows")

    assert [f">n{at:03}<" in shown for at in (249, 150, 149)] == [True, True, False]
    assert ">n149<" in before


async def _told_why(browser: Browser, run_id: str) -> None:
    """Wait for the scheduler's word on the run."""
    headers = {"X-Fairlead-Page": browser.page_token}
    path = f"/dashboard/api/v1/runs/{run_id}/watch"
    async with browser.client.get(path, headers=headers) as answer:
        async for line in answer.content:
            if b'"pending_reason":"' in line:
                return


async def test_a_part_of_a_page_leaves_nothing_beside_it_when_it_is_replaced(
    admin: Browser,
) -> None:
    rows = await admin.fragment("/dashboard/runs", "rows")
    assert (rows[0], rows[-1]) == ("<", ">")


async def test_a_user_sees_no_runs_of_others(admin: Browser, ada: Browser) -> None:
    run = await submit(admin, name="secret-plan")
    own = await submit(ada, USER_TOKEN, name="own-run")

    rows = await ada.fragment("/dashboard/runs", "rows")
    other = await ada.open(f"/dashboard/runs/{run['id']}")
    stopped = await ada.act(f"/dashboard/runs/{run['id']}/actions/abort")

    assert own["name"] in rows
    assert "secret-plan" not in rows
    assert (other.status, stopped.status) == (404, 404)


async def test_a_page_hears_of_its_users_runs_alone(admin: Browser, ada: Browser) -> None:
    foreign, own = await submit(admin, name="foreign"), await submit(ada, USER_TOKEN, name="own")
    async with await ada.stream(foreign["id"], own["id"]) as stream:
        await stream.content.readuntil(b"\n\n")
        for browser, run in ((admin, foreign), (ada, own)):
            await browser.act(f"/dashboard/runs/{run['id']}/actions/abort")
        heard = await stream.content.readuntil(b"\n\n")
    assert heard.startswith(f'event: changed\ndata: {{"topic":"{own["id"]}"'.encode())


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("?text=lpha", ["alpha"]),
        ("?band=batch", ["beta"]),
        ("?status=live", ["alpha", "beta"]),
        ("?status=done", []),
        ("?user=ada", []),
        ("", ["alpha", "beta"]),
    ],
)
async def test_filters_stand_in_the_address(admin: Browser, query: str, shown: list[str]) -> None:
    await submit(admin, name="alpha")
    await submit(admin, name="beta", band="batch")

    rows = await admin.fragment(f"/dashboard/runs{query}", "rows")

    assert [name for name in ("alpha", "beta") if f">{name}<" in rows] == shown


async def test_an_unknown_filter_is_refused_by_name(admin: Browser) -> None:
    answer = await admin.open("/dashboard/runs?status=odd")

    assert answer.status == 400
    assert "no status" in await answer.text()


async def test_older_runs_are_on_the_next_page(admin: Browser) -> None:
    for number in range(52):
        await submit(admin, name=f"run-{number}")

    first = await admin.fragment("/dashboard/runs", "rows")
    cursor = first.split("cursor=")[1].split('"')[0]
    second = await admin.fragment(f"/dashboard/runs?cursor={cursor}", "rows")

    assert first.count("data-row") == 50
    assert [f">run-{number}<" in second for number in range(3)] == [True, True, False]


async def test_a_run_shows_its_configuration_without_its_secrets(admin: Browser) -> None:
    run = await submit(admin)

    text = await (await admin.open(f"/dashboard/runs/{run['id']}")).text()

    assert "commands:" in text
    assert "NCCL_DEBUG: INFO" in text
    assert "hidden-value" not in text


@pytest.mark.parametrize(
    ("ssh", "is_offered", "said"),
    [
        ("auto", False, "main has no terminal: it was submitted without a public key"),
        ("off", False, "main has no terminal: it was submitted with `ssh: off`"),
        ("embedded", True, ""),
    ],
)
async def test_a_run_without_ssh_says_before_a_click_how_to_get_a_terminal(
    admin: Browser, ssh: str, is_offered: bool, said: str
) -> None:
    run = await submit(admin, ssh=ssh)
    shown = html.unescape(await admin.fragment(f"/dashboard/runs/{run['id']}", "terminal"))
    assert ("Open a shell" in shown) is is_offered
    assert said in shown
    assert ("submit it again with `ssh: embedded`" in shown) is not is_offered


async def test_a_scheduled_run_says_when_it_starts_next(admin: Browser) -> None:
    run = await submit(admin, schedule={"cron": "0 3 * * *"})
    starts = f'<time datetime="{run["next_triggered_at"]}">'

    assert f"starts {starts}" in await admin.fragment("/dashboard/runs", "rows")
    shown = await admin.fragment(f"/dashboard/runs/{run['id']}", "overview")
    assert f"<dt>Starts next</dt><dd>{starts}" in shown
    assert '<span class="mono">0 3 * * *</span> (UTC)' in shown


def test_earlier_occurrences_are_told_newest_first() -> None:
    done = Occurrence(
        number=1,
        status=RunStatus.DONE,
        reason=RunReason.ALL_JOBS_DONE,
        message=None,
        started_at=1.0,
        finished_at=2.0,
    )
    failed = replace(
        done, number=2, status=RunStatus.FAILED, reason=RunReason.JOB_FAILED, message="exit code 3"
    )
    run = replace(a_run("nightly", user="ada").run, occurrences=(done, failed))

    told = [(one.number, one.outcome) for one in occurrence_rows(run)]

    assert told == [(2, "failed: exit code 3"), (1, "done: All jobs are done.")]


@pytest.mark.parametrize(
    ("status", "reason", "message", "said"),
    [
        (
            RunStatus.RUNNING,
            None,
            None,
            "The run is running. It is suspended: nothing of it starts.",
        ),
        (
            RunStatus.FAILED,
            RunReason.JOB_FAILED,
            "exited with code 3",
            "The run failed. A job failed. Exited with code 3.",
        ),
        (
            RunStatus.TERMINATED,
            RunReason.STOPPED_BY_USER,
            None,
            "The run was terminated. A user stopped the run.",
        ),
    ],
)
def test_the_status_is_told_in_sentences(
    status: RunStatus, reason: RunReason | None, message: str | None, said: str
) -> None:
    state = a_run("r1", status=status)
    run = msgspec.structs.replace(state.run, reason=reason, message=message, suspended=True)
    assert sentence_of(msgspec.structs.replace(state, run=run)) == said


@pytest.mark.parametrize("ssh", ["embedded", "off"])
async def test_an_ended_run_offers_no_terminal(admin: Browser, ssh: str) -> None:
    run = await submit(admin, ssh=ssh)
    await admin.act(f"/dashboard/runs/{run['id']}/actions/stop")
    shown = await admin.fragment(f"/dashboard/runs/{run['id']}", "terminal")
    assert "Open a shell" not in shown
    assert "has no terminal" not in shown
    assert "The run has ended" in shown


async def test_names_and_messages_are_text_and_no_markup(admin: Browser) -> None:
    run = await submit(admin, commands=[XSS])

    text = await (await admin.open(f"/dashboard/runs/{run['id']}")).text()
    searched = await (await admin.open(f"/dashboard/runs?text={XSS}")).text()
    lost = await (await admin.open("/dashboard/runs/<b>lost")).text()

    assert XSS not in text + searched
    assert "&lt;b&gt;lost" in lost
    assert "&lt;script&gt;" in text


async def test_stop_ends_the_run_and_says_so(admin: Browser) -> None:
    run = await submit(admin)

    answer = await admin.act(f"/dashboard/runs/{run['id']}/actions/stop")
    overview = await admin.fragment(f"/dashboard/runs/{run['id']}", "overview")

    assert answer.status == 204
    told = msgspec.json.decode(answer.headers["HX-Trigger"])
    assert told == {"fairlead:done": {"message": "stop was requested"}}
    assert "terminat" in overview


async def test_a_suspended_run_can_be_resumed(admin: Browser) -> None:
    run = await submit(admin)
    path = f"/dashboard/runs/{run['id']}"

    await admin.act(f"{path}/actions/suspend")
    suspended = await admin.fragment(path, "overview")
    await admin.act(f"{path}/actions/resume")
    resumed = await admin.fragment(path, "overview")

    assert 'id="act-resume"' in suspended
    assert 'id="act-suspend"' in resumed


async def test_a_group_is_scaled(admin: Browser) -> None:
    run = await submit(admin)
    path = f"/dashboard/runs/{run['id']}"
    group = run["groups"][0]["name"]

    done = await admin.act(f"{path}/scale", group=group, nodes="3")
    refused = await admin.act(f"{path}/scale", group=group, nodes="many")

    assert done.status == 204
    assert refused.status == 400
    assert 'value="3"' in await admin.fragment(path, "overview")


async def test_an_open_page_hears_of_a_change_at_once(admin: Browser) -> None:
    async with await admin.stream("any") as stream:
        assert (await stream.content.readuntil(b"\n\n")).startswith(b"event: hello\n")
        began = asyncio.get_running_loop().time()
        await submit(admin)
        heard = await stream.content.readuntil(b"\n\n")
        lasted = asyncio.get_running_loop().time() - began

    assert heard.startswith(b'event: changed\ndata: {"topic":"any","mark":"')
    assert lasted < 5


async def test_a_stream_tells_only_what_changed_since_the_document_was_made(
    admin: Browser,
) -> None:
    run = await submit(admin)
    before = await mark_of_a_page(admin)
    await admin.act(f"/dashboard/runs/{run['id']}/actions/abort")
    after = await mark_of_a_page(admin)

    told = [await first_told(admin, f"{run['id']}:{mark}", "any:") for mark in (before, after)]

    assert [topic for topic, _ in told] == [run["id"], "any"]
    assert all(hello["mark"] == after and hello["now"] > 0 for _, hello in told)


async def mark_of_a_page(browser: Browser) -> str:
    text = await (await browser.open("/dashboard/runs")).text()
    return text.split('name="fairlead-mark" content="')[1].partition('"')[0]


async def first_told(browser: Browser, *topics: str) -> tuple[str, dict[str, Any]]:
    """Return the first topic that a new stream says has changed, and what it says at first."""
    async with await browser.stream(*topics) as stream:
        told = [await stream.content.readuntil(b"\n\n") for _ in range(2)]
    hello, changed = (json.loads(one.partition(b"data: ")[2]) for one in told)
    return changed["topic"], hello


async def test_a_run_of_another_user_does_not_end_the_stream_of_a_browser(
    admin: Browser, ada: Browser
) -> None:
    foreign = await submit(admin, name="secret-plan")
    async with await ada.stream(foreign["id"], "any") as stream:
        told = [await stream.content.readuntil(b"\n\n") for _ in range(2)]
        await admin.act(f"/dashboard/runs/{foreign['id']}/actions/abort")
        told.append(await stream.content.readuntil(b"\n\n"))
    assert b'"topic":"any"' in told[1] + told[2]
    assert foreign["id"].encode() not in b"".join(told)


async def test_a_page_is_drawn_once_when_it_is_whole_and_its_dates_are_written(
    admin: Browser,
) -> None:
    """Chromium draws a long page several times on its way otherwise, and each costs it a layout."""
    head, _, body = (await (await admin.open("/dashboard/runs")).text()).partition("</head>")
    assert '<link rel="expect" href="#confirm" blocking="render">' in head
    assert re.search(r'<script type="module" src="[^"]+/page.js" blocking="render">', head)
    after = body.partition('<dialog id="confirm"')[2].partition("</dialog>")[2]
    assert after.split() == ["</body>", "</html>"]


async def test_files_have_addresses_that_change_with_them(admin: Browser) -> None:
    text = await (await admin.open("/dashboard/runs")).text()
    address = text.split('type="module" src="')[1].split('"')[0]

    answer = await admin.client.get(address, headers={"Accept-Encoding": "gzip"})
    old = await admin.client.get("/dashboard/static/0000/page.js")

    assert answer.status == 200
    assert "immutable" in answer.headers["Cache-Control"]
    assert answer.headers["Content-Encoding"] == "gzip"
    assert old.status == 404


@pytest.mark.parametrize("state", list(IrisState))
def test_every_state_has_iris_name_a_colour_and_a_sign(state: IrisState) -> None:
    assert badge(state).name == state.value
    assert f".status-{state.value}{{--state:{LOOKS[state].colour};" in stylesheet()
    assert badge(state).sign


def test_states_have_the_colours_of_iris() -> None:
    assert {state.value: look.colour for state, look in LOOKS.items()} == {
        "pending": "#9a6700",
        "assigned": "#bc4c00",
        "building": "#8250df",
        "running": "#0969da",
        "succeeded": "#1a7f37",
        "failed": "#cf222e",
        "killed": "#57606a",
        "worker_failed": "#8250df",
        "unschedulable": "#cf222e",
        "preempted": "#bc4c00",
    }


def test_a_worker_failure_is_annotated() -> None:
    assert badge(IrisState.WORKER_FAILED).note == "(worker failure)"


def test_a_moment_in_a_sentence_is_shown_in_the_zone_of_its_reader() -> None:
    moment = "2026-01-02T03:04:05.678Z"
    assert dated(f"waiting until {moment} <b>") == (
        f'waiting until <time class="moment" datetime="{moment}">{moment}</time> &lt;b&gt;'
    )


def test_a_duration_shows_its_two_largest_units() -> None:
    shown = [lasting(seconds) for seconds in (5.4, 65, 3700, 90000)]

    assert shown == ["5 s", "1 min 5 s", "1 h 1 min", "1 d 1 h"]


async def test_the_page_of_a_run_says_after_which_runs_it_begins(admin: Browser) -> None:
    prepare = await submit(admin, name="prepare")
    train = await submit(admin, after="prepare", start_before="4h")
    page = await (await admin.open(f"/dashboard/runs/{train['id']}")).text()
    assert f'<a href="/dashboard/runs/{prepare["id"]}">prepare</a> is done' in page
    assert "after run prepare: waits until it is done" in page
    assert "Must run by" in page
