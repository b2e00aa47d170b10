"""Attempts that a run's document no longer has can still be asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from controller.lifecycle.model import Attempt, Incarnation, RunState
from controller.lifecycle.runs.compaction import KEPT_ATTEMPTS
from fairlead.cli.commands.runs.show import with_history as attempts_of
from fairlead.cli.errors import CliError
from fairlead.model.statuses import AttemptStatus, RunStatus
from fairlead.rest import ControllerClient
from tests.unit.api.asking import error_of, payload, submit, write_log
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN, Controller
from tests.unit.store.samples import a_run, submission, with_history

ATTEMPTS = 30


def in_incarnation(attempt: Attempt) -> Attempt:
    """Each in one of its own."""
    own = Incarnation(number=attempt.number, id=f"inc{attempt.number}")
    return msgspec.structs.replace(attempt, incarnation=own)


def ended() -> RunState:
    state = with_history(a_run("run1", name="nightly", status=RunStatus.DONE), ATTEMPTS)
    job = state.jobs[0]
    last = msgspec.structs.replace(job.attempts[-1], status=AttemptStatus.DONE)
    attempts = [in_incarnation(one) for one in (*job.attempts[:-1], last)]
    over = msgspec.structs.replace(job, attempts=tuple(attempts), retry_at=None)
    return msgspec.structs.replace(state, jobs=(over,))


@pytest.fixture
async def history(controller: Controller) -> RunState:
    state = ended()
    await controller.store.commit(submission(state))
    return state


async def test_a_run_shows_its_recent_attempts_and_has_all_of_them_in_pages(
    api: TestClient[Any, Any], history: RunState
) -> None:
    ids = [attempt.id for attempt in history.jobs[0].attempts]
    async with api.get("/v1/runs/nightly") as answer:
        (job,) = (await answer.json())["jobs"]
    assert [attempt["id"] for attempt in job["attempts"]] == ids[-KEPT_ATTEMPTS:]

    found: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        query = {"limit": "13", **({"cursor": cursor} if cursor else {})}
        async with api.get("/v1/runs/nightly/attempts", params=query) as answer:
            page = await answer.json()
        found += page["attempts"]
        cursor = page["next_cursor"]
    assert [attempt["id"] for attempt in found] == ids
    assert {attempt["job_id"] for attempt in found} == {history.jobs[0].id}


async def test_attempts_can_be_asked_for_by_job_and_occurrence(
    api: TestClient[Any, Any], history: RunState
) -> None:
    async with api.get("/v1/runs/nightly/attempts", params={"occurrence": "3"}) as answer:
        page = await answer.json()
    assert [attempt["number"] for attempt in page["attempts"]] == [2]
    async with api.get("/v1/runs/nightly/attempts", params={"job": "nobody"}) as answer:
        assert await error_of(answer) == (404, "not_found", "job")


async def test_attempts_of_anothers_run_are_not_told(
    api: TestClient[Any, Any], server: TestServer, controller: Controller
) -> None:
    state = ended()
    run = msgspec.structs.replace(state.run, user="bob")
    await controller.store.commit(submission(msgspec.structs.replace(state, run=run)))
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    async with api.get("/v1/runs/nightly/attempts", headers=headers) as answer:
        assert (await error_of(answer))[:2] == (404, "not_found")


async def test_the_log_of_an_old_attempt_is_found_by_number_and_by_id(
    api: TestClient[Any, Any], controller: Controller, history: RunState
) -> None:
    old = history.jobs[0].attempts[3]
    await write_log(controller, old.id, b"long ago")
    for key in ("3", old.id):
        async with api.get("/v1/runs/nightly/logs", params={"attempt": key}) as answer:
            assert payload(await answer.read()) == b"long ago"
    async with api.get("/v1/runs/nightly/logs", params={"attempt": str(ATTEMPTS)}) as answer:
        assert await error_of(answer) == (404, "not_found", "attempt")
        assert f"0 to {ATTEMPTS - 1}" in (await answer.json())["error"]["message"]


async def test_an_occurrence_is_shown_with_all_of_its_attempts_and_no_others(
    server: TestServer, history: RunState
) -> None:
    client = ControllerClient(str(server.make_url("")).rstrip("/"), ADMIN_TOKEN)
    run = await asyncio.to_thread(client.run, "nightly")
    shown = await asyncio.to_thread(attempts_of, client, run, occurrence=5)
    assert [one.id for job in shown.jobs for one in job.attempts] == ["run1-attempt-4"]
    with pytest.raises(CliError, match="no attempt of occurrence 99 of nightly is kept"):
        await asyncio.to_thread(attempts_of, client, run, occurrence=99)


async def test_an_incarnation_is_shown_with_all_of_its_attempts_and_no_others(
    server: TestServer, history: RunState
) -> None:
    client = ControllerClient(str(server.make_url("")).rstrip("/"), ADMIN_TOKEN)
    run = await asyncio.to_thread(client.run, "nightly")
    for key in ("3", "inc3"):
        shown = await asyncio.to_thread(attempts_of, client, run, incarnation=key)
        assert [one.id for job in shown.jobs for one in job.attempts] == ["run1-attempt-3"]
    with pytest.raises(CliError, match="no attempt of incarnation 99 of nightly is kept; its"):
        await asyncio.to_thread(attempts_of, client, run, incarnation="99")


async def test_a_run_shows_its_children_ended_ones_too(api: TestClient[Any, Any]) -> None:
    await submit(api, name="parent")
    for name in ("first", "second"):
        await submit(api, name=name, parent="parent")
    await api.post("/v1/runs/first/stop", json={"abort": True})
    for parent in ("submitted", "terminated"):
        async with api.get("/v1/runs/parent") as answer:
            run = await answer.json()
        assert run["status"] == parent
        second = "submitted" if parent == "submitted" else "terminated"
        told = [(child["name"], child["status"]) for child in run["children"]]
        assert told == [("first", "terminated"), ("second", second)]
        await api.post("/v1/runs/parent/stop", json={"abort": True})
