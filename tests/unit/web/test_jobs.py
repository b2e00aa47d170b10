"""The jobs of a large run on its page: pages, filters and orders, and how little is asked for."""

from __future__ import annotations

import json
import re

import pytest
from msgspec.structs import replace

from controller.lifecycle.model import Attempt, RunPolicy, RunState
from controller.web.pages.jobs import MAX_ATTEMPTS, ROWS, ran_for
from fairlead.model.job_links import JobLink, LinkKind
from fairlead.model.statuses import AttemptStatus, RunStatus
from tests.unit.api.conftest import Controller
from tests.unit.store.samples import a_run, an_attempt, submission
from tests.unit.web.conftest import Browser

JOBS = 300
FAILED = (7, 107, 207)
PATH = "/dashboard/runs/sweep"


def attempts_of(number: int, many: int = 1) -> tuple[Attempt, ...]:
    """Attempts of one job, the last of which failed or still runs."""
    ends = number in FAILED
    last = an_attempt(
        f"of-{number}",
        many - 1,
        status=AttemptStatus.FAILED if ends else AttemptStatus.RUNNING,
        finished_at=1900.0 if ends else None,
    )
    before = [
        an_attempt(f"of-{number}", at, status=AttemptStatus.FAILED, finished_at=150.0)
        for at in range(many - 1)
    ]
    return tuple(replace(one, job_id=f"job-{number}") for one in (*before, last))


def a_sweep(jobs: int = JOBS) -> RunState:
    """A run whose jobs run each on a node of its own; those of FAILED have failed."""
    state = a_run("sweep", name="sweep", user="admin", status=RunStatus.RUNNING)
    job = state.jobs[0]
    return replace(
        state,
        run=replace(
            state.run,
            policy=RunPolicy(),
            incarnation=None,
            switches=(),
            finished_at=None,
            suspended=False,
        ),
        jobs=tuple(
            replace(
                job,
                id=f"job-{number}",
                cookie=number,
                index=number,
                abandoned=False,
                retry_at=None,
                attempts=tuple(
                    replace(
                        one,
                        incarnation=None,
                        later_reasons=(),
                        reason=one.reason if one.finished_at else None,
                        node_name=f"node-{number}",
                        running_at=1000.0 - number,
                        terminating_at=None,
                    )
                    for one in attempts_of(number)
                ),
            )
            for number in range(jobs)
        ),
    )


@pytest.fixture
async def sweep(controller: Controller) -> RunState:
    state = a_sweep()
    await controller.store.commit(submission(state))
    return state


def rows_in(fragment: str) -> list[int]:
    return [int(found) for found in re.findall(r'id="job-job-(\d+)"', fragment)]


async def test_the_page_of_an_ended_run_reads_its_jobs_once(
    admin: Browser, controller: Controller, sweep: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 jobs take 25 ms to read; the page, its events and its stream each need the run."""
    asked: list[str] = []
    find = controller.store.find_run

    async def find_run(key: str, *, user: str | None = None) -> RunState | None:
        asked.append(key)
        return await find(key, user=user)

    monkeypatch.setattr(controller.store, "find_run", find_run)
    assert "1 to 50 of 300" in await (await admin.open(PATH)).text()
    assert asked == ["sweep"]
    (await admin.stream("sweep")).close()
    assert asked == ["sweep"]
    await controller.store.commit(submission(a_run("other", name="other", user="admin")))
    assert (await admin.open("/dashboard/runs/other")).status == 200
    assert asked == ["sweep", "other"]


async def test_the_jobs_of_a_large_run_come_page_by_page(admin: Browser, sweep: RunState) -> None:
    first = await admin.fragment(PATH, "jobs")
    last = await admin.fragment(f"{PATH}?page=6", "jobs")

    assert rows_in(first) == list(range(ROWS))
    assert rows_in(last) == list(range(JOBS - ROWS, JOBS))
    assert "1 to 50 of 300" in first
    assert f'href="{PATH}?page=2" rel="next"' in first
    assert f'href="{PATH}?page=5" rel="prev"' in last
    assert 'rel="next"' not in last
    beyond = await admin.fragment(f"{PATH}?page=99", "jobs")
    assert rows_in(beyond) == rows_in(last)


async def test_failed_jobs_alone_are_one_click_away(admin: Browser, sweep: RunState) -> None:
    every = await admin.fragment(PATH, "jobs")
    assert f'href="{PATH}?state=failed"' in every
    assert "failed \N{MULTIPLICATION SIGN} 3" in every

    failed = await admin.fragment(f"{PATH}?state=failed", "jobs")

    assert rows_in(failed) == list(FAILED)
    chosen = re.findall(r'<a href="([^"]*)"[^>]*aria-current="true"', failed)
    assert chosen == [f"{PATH}?state=failed"]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("sort=state", [7, 107, 207, 0]),
        ("sort=longest", [299, 298, 297, 296]),
        ("sort=latest", [7, 107, 207, 0]),
        ("find=main/29", [29, 290, 291, 292]),
        ("find=NODE-123", [123]),
        ("find=nothing-like-it", []),
    ],
)
async def test_jobs_are_found_and_ordered(
    admin: Browser, sweep: RunState, query: str, first: list[int]
) -> None:
    assert rows_in(await admin.fragment(f"{PATH}?{query}", "jobs"))[:4] == first


async def test_jobs_that_were_tried_again_are_found(admin: Browser, controller: Controller) -> None:
    state = a_sweep(20)
    tried = replace(state.jobs[3], attempts=attempts_of(3, many=2))
    jobs = (*state.jobs[:3], tried, *state.jobs[4:])
    await controller.store.commit(submission(replace(state, jobs=jobs)))

    every = await admin.fragment(PATH, "jobs")

    assert f'href="{PATH}?state=retried"' in every
    assert "tried again \N{MULTIPLICATION SIGN} 1" in every
    assert rows_in(await admin.fragment(f"{PATH}?state=retried", "jobs")) == [3]


@pytest.mark.parametrize("query", ["state=broken", "sort=up", "page=two"])
async def test_a_wrong_filter_is_refused(admin: Browser, sweep: RunState, query: str) -> None:
    assert (await admin.open(f"{PATH}?{query}")).status == 400


async def test_a_change_of_a_run_is_asked_for_once(admin: Browser, sweep: RunState) -> None:
    overview = await admin.fragment(f"{PATH}?state=failed", "overview")

    sections = re.findall(r'<(?:section|p) id="(\w+)"[^>]*hx-swap-oob="morph"', overview)
    assert sections == ["jobs", "offered", "events"]
    assert rows_in(overview) == list(FAILED)
    assert "hx-swap-oob" not in await (await admin.open(PATH)).text()


async def test_the_logs_of_all_jobs_are_offered_without_another_request(
    admin: Browser, sweep: RunState
) -> None:
    text = await (await admin.open(PATH)).text()
    told = json.loads(text.split('<p id="offered" hidden>')[1].partition("</p>")[0])
    assert len(told) == JOBS
    assert told[7] == ["job-7", "main/7", "main", [["of-7-attempt-0", 0, "failed", False]]]
    assert told[8][3] == [["of-8-attempt-0", 0, "running", True]]
    assert len(text) < 250_000


async def test_documents_come_compressed(admin: Browser, sweep: RunState) -> None:
    headers = {"X-Fairlead-Page": admin.page_token, "Accept-Encoding": "gzip"}
    for path in (PATH, "/dashboard/api/v1/runs/sweep"):
        answer = await admin.client.get(path, headers=headers)
        body = await answer.read()
        assert answer.headers["Content-Encoding"] == "gzip"
        assert int(answer.headers["Content-Length"]) < len(body) / 8


async def test_a_job_that_was_tried_often_shows_its_latest_attempts(
    admin: Browser, controller: Controller
) -> None:
    state = a_sweep(1)
    tried = replace(state.jobs[0], attempts=attempts_of(0, many=9))
    await controller.store.commit(submission(replace(state, jobs=(tried,))))

    shown = await admin.fragment(PATH, "jobs")

    numbers = [int(found) for found in re.findall(r"data-log-of=\"[^\"]+\">(\d+)</a>", shown)]
    assert numbers == [8, 7, 6, 5, 4]
    assert len(numbers) == MAX_ATTEMPTS
    assert ">4 earlier</a>" in shown


async def test_among_many_jobs_each_has_one_row_and_its_earlier_attempts_a_link(
    admin: Browser, controller: Controller
) -> None:
    state = a_sweep(11)
    tried = replace(state.jobs[3], attempts=attempts_of(3, many=3))
    jobs = (*state.jobs[:3], tried, *state.jobs[4:])
    await controller.store.commit(submission(replace(state, jobs=jobs)))

    shown = await admin.fragment(PATH, "jobs")
    alone = await admin.fragment(f"{PATH}?find=job-3", "jobs")

    assert shown.count("<tr>") == 1 + 11
    assert f'<a href="{PATH}?find=job-3"' in shown
    assert ">2 earlier</a>" in shown
    assert alone.count("<tr>") == 1 + 3
    assert "earlier</a>" not in alone


def test_a_run_tells_how_long_it_runs_since_its_first_attempt() -> None:
    state = a_sweep(3)
    assert ran_for(state, 998.0 + 3600) == "1 h 0 min"
    ended = replace(state, run=replace(state.run, finished_at=1298.0))
    assert ran_for(ended, 1e9) == "5 min 0 s"


async def test_a_link_that_a_job_printed_is_shown_as_data_of_the_job(
    admin: Browser, controller: Controller
) -> None:
    state = a_sweep(1)
    url = "https://wandb.ai/ada/m/runs/1?a=1&b=<i>"
    (last,) = state.jobs[0].attempts
    linked = replace(last, links=(JobLink(kind=LinkKind.WANDB, url=url),))
    job = replace(state.jobs[0], attempts=(linked,))
    await controller.store.commit(submission(replace(state, jobs=(job,))))
    page = await admin.fragment(PATH, "jobs")
    assert "&amp;b=&lt;i&gt;" in page
    assert "<i>" not in page
    assert 'target="_blank" rel="noopener noreferrer"' in page
