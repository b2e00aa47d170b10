"""Submissions that may wait for more than the database: in one message and turn with plain ones."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from controller.pipelines.admissions import ParentGone
from controller.service.runs.submission_stages import IfExists
from controller.service.runs.submissions import SubmissionService
from controller.store.base import Changes
from controller.store.errors import LeaseTaken
from tests.support.waiting import eventually
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN
from tests.unit.cli.conftest import PlayedNode
from tests.unit.forwarding.submitting import (
    TASK,
    AFollower,
    ALeader,
    Answer,
    Bed,
    both,
    on_the_way,
    waiting_at,
)

CODE = b"an archive"
DIGEST = hashlib.sha256(CODE).hexdigest()
SERVICE = {**TASK, "type": "service", "port": 8000}
WITH_CODE = {**TASK, "files": [{"local_path": "a", "path": "/a", "uploaded": [DIGEST, "/"]}]}
OF_NO_ONE = {**TASK, "files": [{"local_path": "a", "path": "/a", "uploaded": ["0" * 64, "/"]}]}
ONE, SEVERAL, TOGETHER = "/v1/runs", "/v1/runs:batch", "/v1/runs/together"
DEPENDENTS = [
    {"configuration": {**TASK, "name": "second", "after": ["first"]}},
    {"configuration": {**TASK, "name": "first"}},
]
CIRCLE = [
    {"configuration": {**TASK, "name": "second", "after": ["first"]}},
    {"configuration": {**TASK, "name": "first", "after": ["second"]}},
]
GIVEN: list[tuple[str, dict[str, Any]]] = [
    (ONE, {"configuration": SERVICE}),
    (ONE, {"configuration": {**SERVICE, "name": "before"}}),
    (ONE, {"configuration": WITH_CODE}),
    (ONE, {"configuration": OF_NO_ONE}),
    (ONE, {"configuration": {**TASK, "outputs_from": ["none"]}}),
    (ONE, {"configuration": {**TASK, "outputs_from": ["before"]}}),
    (ONE, {"configuration": {**TASK, "after": ["before"], "outputs_from": ["before"]}}),
    (ONE, {"configuration": TASK, "name": "new", "if_exists": "replace"}),
    (ONE, {"configuration": TASK, "name": "of-admin", "if_exists": "replace"}),
    (ONE, {"configuration": TASK, "name": "Not A Name", "if_exists": "replace"}),
    (ONE, {"configuration": SERVICE, "name": "before", "if_exists": "keep"}),
    (ONE, {"configuration": {**SERVICE, "fleets": ["none"]}}),
    (SEVERAL, {"runs": [{"configuration": WITH_CODE, "name": name} for name in ("x", "y")]}),
    (SEVERAL, {"runs": [{"configuration": one, "name": "x"} for one in (SERVICE, OF_NO_ONE)]}),
    (TOGETHER, {"runs": DEPENDENTS}),
    (TOGETHER, {"runs": CIRCLE}),
    (TOGETHER, {"runs": [{"configuration": TASK, "name": "x"}] * 2}),
    (TOGETHER, {"runs": [{"configuration": TASK}, {"configuration": OF_NO_ONE}]}),
    (TOGETHER, {"runs": [{"configuration": TASK}, {"configuration": TASK, "name": "before"}]}),
    (TOGETHER, {"runs": [{"configuration": TASK}, {"configuration": TASK, "parent": "none"}]}),
    (TOGETHER, {"runs": [{"configuration": SERVICE}, {"configuration": WITH_CODE}]}),
]
"""What the leader is given, by the path."""


def keyed(body: dict[str, Any], key: str) -> dict[str, Any]:
    if "runs" not in body:
        return {**body, "client_key": key}
    runs = [{**one, "client_key": f"{key}{number}"} for number, one in enumerate(body["runs"])]
    return {**body, "runs": runs}


def ids_in(answer: Any) -> Iterator[str]:
    for one in answer.get("runs", answer.get("results", [answer])):
        if "error" not in one or one["error"] is None:
            yield one["id"]


def plain(answer: Any) -> str:
    """Return a document without what differs between two runs."""
    text = json.dumps(answer)
    for one in answer.get("runs", answer.get("results", [answer])):
        if one.get("name"):
            text = text.replace(f'"{one["name"]}"', '"NAME"')
    text = re.sub(r"\b[0-9a-f]{16}\b", "ID", text)
    return re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "TIME", text)


async def prepared(leader: ALeader) -> None:
    """Let the leader have runs and an upload."""
    assert (await leader.put(f"/v1/blobs/{DIGEST}", CODE))[0] == 200
    assert (await leader.submit(name="before"))[0] == 201
    of_admin = {"configuration": TASK, "name": "of-admin"}
    assert (await leader.post(ONE, of_admin, ADMIN_TOKEN))[0] == 201


@pytest.mark.parametrize(("path", "body"), GIVEN)
@pytest.mark.parametrize("is_keyed", [True, False])
async def test_each_kind_goes_in_a_message_and_has_the_leaders_answer(
    submitted: Bed, path: str, body: dict[str, Any], *, is_keyed: bool
) -> None:
    leader, follower = await both(submitted)
    await prepared(leader)
    answers: list[Answer] = []
    for at, key in ((follower, "a"), (leader, "b")):
        answer = await at.post(path, keyed(body, key) if is_keyed else body)
        answers.append(answer)
        if "error" not in answer[1] and answer[1].get("name") != "before":
            # The other one may want the names.
            for run in ids_in(answer[1]):
                await leader.post(f"/v1/runs/{run}/stop", {})
    here, there = answers
    assert (here[0], plain(here[1]), here[2]) == (there[0], plain(there[1]), there[2])
    assert (len(leader.messages), leader.passed_on.total()) == (1, 0)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    (ONE, {"configuration": {**SERVICE, "gateway": "none"}}),
    (ONE, {"configuration": {**SERVICE, "https": True}}),
    (ONE, {"configuration": {**SERVICE, "band": "production"}}),
    (ONE, {"configuration": {**SERVICE, "colour": "red"}, "if_exists": "replace"}),
    (ONE, {"configuration": {**WITH_CODE, "env": {"A": "${{ secrets.none }}"}}}),
    (TOGETHER, {"runs": []}),
    (TOGETHER, {"runs": [{"configuration": TASK}] * 101}),
    (TOGETHER, {"runs": [{"configuration": TASK, "if_exists": "keep"}]}),
    (TOGETHER, {"runs": [{"configuration": {**TASK, "colour": "red"}, "client_key": "a"}]}),
    (TOGETHER, {"runs": [{"configuration": {**TASK, "band": "production"}}]}),
    (TOGETHER, {"runs": [{"configuration": {**SERVICE, "gateway": True}}]}),
]


@pytest.mark.parametrize(("path", "body"), REFUSED)
async def test_what_can_be_refused_at_the_follower_has_the_leaders_words(
    submitted: Bed, path: str, body: dict[str, Any]
) -> None:
    leader, follower = await both(submitted)
    refused = await follower.post(path, body)
    assert refused == await leader.post(path, body)
    assert 400 <= refused[0] < 500
    assert (leader.messages, leader.passed_on.total()) == ([], 0)


@pytest.mark.parametrize(
    "second",
    [
        {"configuration": {**TASK, "colour": "red"}},
        {"configuration": TASK, "if_exists": "keep"},
        {"configuration": TASK, "client_key": "twice"},
    ],
)
async def test_a_fault_of_a_later_one_of_an_act_is_told_by_the_leader(
    submitted: Bed, second: dict[str, Any]
) -> None:
    leader, follower = await both(submitted)
    for first in ({"parent": "none"}, {"client_key": "twice"}):
        runs = {"runs": [{"configuration": TASK, **first}, second]}
        here, there = await follower.post(TOGETHER, runs), await leader.post(TOGETHER, runs)
        assert (here[0], plain(here[1])) == (there[0], plain(there[1]))


async def test_a_gateway_counts_as_soon_as_the_leader_has_it(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    body = {"configuration": {**SERVICE, "gateway": "main"}}
    assert (await follower.post(ONE, body))[1]["error"]["code"] == "no_gateway"
    manager = submitted.controller.gateways
    sessions = asyncio.create_task(manager.run())
    gateway = {"name": "main", "domain": "models.example", "local_socket": "/s"}
    made = await leader.post("/v1/gateways", gateway, ADMIN_TOKEN)
    assert made[0] in (200, 201), made
    status, run, _ = await follower.post(ONE, body)
    sessions.cancel()
    await asyncio.gather(sessions, return_exceptions=True)
    assert (status, run["url"]) == (201, f"https://{run['name']}.models.example/")
    assert leader.passed_on.total() == 0


def noted_commits(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Return the names of the runs that each commit from now on changes."""
    commits: list[set[str]] = []
    commit = bed.controller.store.commit

    async def noted(changes: Changes) -> None:
        if changes.runs:
            commits.append({after.run.name for _, after in changes.runs.values()})
        await commit(changes)

    monkeypatch.setattr(bed.controller.store, "commit", noted)
    return commits


MIXED: list[tuple[str, dict[str, Any]]] = [
    (ONE, {"configuration": TASK, "name": "plain"}),
    (ONE, {"configuration": SERVICE, "name": "service"}),
    (ONE, {"configuration": WITH_CODE, "name": "with-code"}),
    (ONE, {"configuration": OF_NO_ONE, "name": "no-code"}),
    (ONE, {"configuration": {**TASK, "outputs_from": ["none"]}, "name": "no-outputs"}),
    (ONE, {"configuration": {**TASK, "priority": 9}, "name": "running", "if_exists": "replace"}),
    (TOGETHER, {"runs": DEPENDENTS}),
    (SEVERAL, {"runs": [{"configuration": WITH_CODE, "name": name} for name in ("x", "y")]}),
    (ONE, {"configuration": TASK, "name": "other"}),
]


async def mixed(follower: AFollower) -> list[asyncio.Task[Answer]]:
    """Return requests of all kinds that wait at the follower, in this order."""
    sending: list[asyncio.Task[Answer]] = []
    for path, body in MIXED:
        sending.append(asyncio.create_task(follower.post(path, body)))
        await eventually(lambda: waiting_at(follower) == len(sending))
    return sending


async def test_requests_of_all_kinds_in_one_message_are_decided_in_one_turn(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await both(submitted)
    await prepared(leader)
    running = (await leader.submit(name="running"))[1]
    await PlayedNode(submitted.controller).runs("running")
    first = await on_the_way(leader, follower)
    sending = await mixed(follower)
    commits = noted_commits(submitted, monkeypatch)
    leader.goes_on.set()
    made = (await first)[1]["name"]
    answers = [await one for one in sending]
    assert [one[0] for one in answers] == [201, 201, 201, 409, 404, 202, 201, 200, 201]
    assert answers[5][1]["id"] == running["id"]
    assert [one["status"] for one in answers[7][1]["results"]] == [201, 201]
    together = {"plain", "service", "with-code", "running", "first", "second", "x", "y", "other"}
    assert [one for one in commits if one & {*together, made}] == [{made}, together]
    assert [len(one.asked) for one in leader.messages[-2:]] == [1, len(MIXED)]


async def test_one_that_waits_holds_up_neither_its_message_nor_the_next_one(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await both(submitted)
    await prepared(leader)
    monkeypatch.setattr("controller.service.runs.shared_turns.MOMENT_SECONDS", 0.0)
    goes_on, waits = asyncio.Event(), asyncio.Event()
    size_for = submitted.controller.blobs.size_for

    async def late(digest: str, user: str) -> int | None:
        waits.set()
        await goes_on.wait()
        return await size_for(digest, user)

    monkeypatch.setattr(submitted.controller.blobs, "size_for", late)
    first = await on_the_way(leader, follower)
    sending = await mixed(follower)
    leader.goes_on.set()
    await first
    quick = [sending[number] for number in (0, 1, 4, 6, 8)]
    assert [(await one)[0] for one in quick] == [201, 201, 404, 201, 201]
    await waits.wait()
    assert (await follower.submit(name="next"))[0] == 201
    slow = [sending[number] for number in (2, 3, 7)]
    assert not any(one.done() for one in slow)
    goes_on.set()
    assert [(await one)[0] for one in slow] == [201, 409, 200]


async def test_while_a_bucket_hangs_so_many_wait_for_it_and_more_are_refused(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await both(submitted)
    await prepared(leader)
    monkeypatch.setattr("controller.forwarding.submissions.batches.SLOW_SECONDS", 0.0)
    monkeypatch.setattr("controller.service.runs.shared_turns.MOMENT_SECONDS", 0.0)
    monkeypatch.setattr("controller.service.runs.shared_turns.LATE_SECONDS", 0.0)
    monkeypatch.setattr("controller.service.runs.shared_turns.MAX_LATE", 3)
    goes_on = asyncio.Event()
    size_for = submitted.controller.blobs.size_for

    async def late(digest: str, user: str) -> int | None:
        await goes_on.wait()
        return await size_for(digest, user)

    monkeypatch.setattr(submitted.controller.blobs, "size_for", late)
    sending = []
    for number in range(3):
        wanted = follower.submit(configuration=WITH_CODE, name=f"code-{number}")
        sending.append(asyncio.create_task(wanted))
        await eventually(lambda: leader.late == len(sending))
    refused = await follower.submit(configuration=WITH_CODE, name="refused")
    assert (refused[0], refused[1]["error"]["code"]) == (503, "too_many_wait")
    # They wait for nothing outside.
    assert (await follower.submit(name="plain"))[0] == 201
    assert (await follower.submit(configuration=SERVICE, name="service"))[0] == 201
    assert not any(one.done() for one in sending)
    goes_on.set()
    assert [(await one)[0] for one in sending] == [201, 201, 201]
    await eventually(lambda: leader.late == 0)
    assert (await follower.submit(configuration=WITH_CODE, name="refused"))[0] == 201
    assert leader.passed_on.total() == 0


async def test_a_service_costs_no_more_than_a_plain_run_unless_it_has_a_gateway(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await both(submitted)
    by_themselves: list[str | None] = []
    submit = SubmissionService.submit

    async def noted(self: Any, submission: Any, **named: Any) -> Any:
        by_themselves.append(submission.name)
        return await submit(self, submission, **named)

    monkeypatch.setattr(SubmissionService, "submit", noted)
    assert (await follower.submit(configuration=SERVICE, name="without"))[0] == 201
    gateway = {"name": "main", "domain": "models.example", "local_socket": "/s"}
    manager = submitted.controller.gateways
    sessions = asyncio.create_task(manager.run())
    assert (await leader.post("/v1/gateways", gateway, ADMIN_TOKEN))[0] == 201
    at_gateway = {**SERVICE, "gateway": "main"}
    status, run, _ = await follower.submit(configuration=at_gateway, name="with")
    sessions.cancel()
    await asyncio.gather(sessions, return_exceptions=True)
    assert (status, run["url"]) == (201, "https://with.models.example/")
    assert by_themselves == ["with"]
    assert leader.passed_on.total() == 0


async def test_an_error_about_one_that_waits_is_the_answer_to_that_one_alone(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await both(submitted)
    await prepared(leader)
    first = await on_the_way(leader, follower)
    sending = await mixed(follower)
    ready = SubmissionService._ready

    async def checked(self: Any, submission: Any, *more: Any, **named: Any) -> Any:
        if submission.name in ("service", "x"):
            raise KeyError("a fault of the controller")
        return await ready(self, submission, *more, **named)

    monkeypatch.setattr(SubmissionService, "_ready", checked)
    leader.goes_on.set()
    await first
    statuses = [(await one)[0] for one in sending]
    assert statuses == [201, 500, 201, 409, 404, 201, 201, 500, 201]


async def test_two_that_replace_one_run_are_judged_one_after_the_other(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    await leader.submit(name="same")
    await PlayedNode(submitted.controller).runs("same")
    first = await on_the_way(leader, follower)
    asked = {"name": "same", "if_exists": IfExists.REPLACE}
    two = [asyncio.create_task(follower.submit(**asked, client_key=key)) for key in ("a", "b")]
    await eventually(lambda: waiting_at(follower) == 2)
    leader.goes_on.set()
    await first
    answers = [await one for one in two]
    assert sorted(one[0] for one in answers) == [202, 409]
    refused = next(one[1] for one in answers if one[0] == 409)
    assert refused == (await leader.submit(**asked, client_key="c"))[1]


async def test_two_that_keep_one_run_are_answered_with_it(submitted: Bed) -> None:
    """They are judged at the same time, when neither has made it."""
    leader, follower = await both(submitted)
    await prepared(leader)
    first = await on_the_way(leader, follower)
    sending: list[asyncio.Task[Answer]] = []
    for configuration in (WITH_CODE, WITH_CODE, SERVICE, TASK):
        keep = follower.submit(configuration=configuration, name="same", if_exists="keep")
        sending.append(asyncio.create_task(keep))
        await eventually(lambda: waiting_at(follower) == len(sending))
    leader.goes_on.set()
    await first
    answers = [await one for one in sending]
    assert sorted(one[0] for one in answers) == [200, 200, 200, 201]
    assert len({one[1]["id"] for one in answers}) == 1


async def waiting_for_code(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, leader: ALeader, follower: AFollower
) -> tuple[list[asyncio.Task[Answer]], asyncio.Event]:
    """Return three requests of one message, and what the upload of two of them waits for at its
    leader: a plain one, which is answered, one with a key, and one without."""
    goes_on, waits = asyncio.Event(), asyncio.Event()
    size_for = bed.controller.blobs.size_for
    monkeypatch.setattr("controller.service.runs.shared_turns.MOMENT_SECONDS", 0.0)

    async def late(digest: str, user: str) -> int | None:
        waits.set()
        await goes_on.wait()
        return await size_for(digest, user)

    first = await on_the_way(leader, follower)
    sending = [
        asyncio.create_task(follower.submit(name="plain")),
        asyncio.create_task(follower.submit(configuration=WITH_CODE, name="key", client_key="a")),
        asyncio.create_task(follower.submit(configuration=WITH_CODE, name="none")),
    ]
    await eventually(lambda: waiting_at(follower) == 3)
    monkeypatch.setattr(bed.controller.blobs, "size_for", late)
    leader.goes_on.set()
    await first
    assert (await sending[0])[0] == 201
    await waits.wait()
    return sending, goes_on


async def test_of_those_that_wait_at_a_leader_that_ends_the_keyed_ones_go_to_the_next(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, follower = await both(submitted)
    await prepared(first)
    second = await submitted.leader("two")
    (_, key, other), goes_on = await waiting_for_code(submitted, monkeypatch, first, follower)
    await follower.lead_to(second)
    await eventually(lambda: len(second.messages) == 1)
    assert not other.done()
    goes_on.set()
    # The two leaders have one memory here: the second one waits for the first one's key.
    assert (await key)[0] == 201
    assert (await other)[0] == 201


async def test_the_lease_may_end_while_some_still_wait(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, follower = await both(submitted)
    await prepared(first)
    second = await submitted.leader("two")
    # The lease ends soon, and it still does changes.
    first.now = 3598.9
    (_, key, other), goes_on = await waiting_for_code(submitted, monkeypatch, first, follower)
    first.now = 3600.0
    status, refused, _ = await other
    assert (status, refused["error"]["code"]) == (503, "store_unavailable")
    assert not key.done()
    await follower.lead_to(second)
    goes_on.set()
    assert (await key)[0] == 201


async def test_a_replaced_leader_says_of_each_that_waits_that_nothing_was_done(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, follower = await both(submitted)
    await prepared(first)
    second = await submitted.leader("two")
    pipeline = submitted.controller.pipeline
    own = pipeline.admit_all, pipeline.admit_together

    async def taken(_: object) -> list[Exception | None]:
        raise LeaseTaken("another controller has taken over")

    monkeypatch.setattr(pipeline, "admit_all", taken)
    monkeypatch.setattr(pipeline, "admit_together", taken)
    before = await on_the_way(first, follower)
    sending = [
        asyncio.create_task(follower.submit(name="plain")),
        asyncio.create_task(follower.submit(configuration=WITH_CODE, name="code")),
        asyncio.create_task(follower.post(TOGETHER, {"runs": DEPENDENTS})),
    ]
    await eventually(lambda: waiting_at(follower) == 3)
    first.goes_on.set()
    await eventually(lambda: follower.follower._links._left == first.at)
    monkeypatch.setattr(pipeline, "admit_all", own[0])
    monkeypatch.setattr(pipeline, "admit_together", own[1])
    await follower.lead_to(second)
    assert [(await one)[0] for one in (before, *sending)] == [201, 201, 201, 201]


async def test_a_token_that_is_revoked_on_the_way_opens_nothing(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    await prepared(leader)
    made = await leader.post("/v1/tokens", {})
    token, id = made[1]["token"], made[1]["id"]
    first = await on_the_way(leader, follower)
    sending = [
        asyncio.create_task(follower.post(path, body, token)) for path, body in (MIXED[1], MIXED[6])
    ]
    sending.append(asyncio.create_task(follower.post(*MIXED[2], USER_TOKEN)))
    await eventually(lambda: waiting_at(follower) == 3)
    assert (await leader.post(f"/v1/tokens/{id}", {}, method="DELETE"))[0] == 200
    leader.goes_on.set()
    await first
    assert [(await one)[0] for one in sending] == [401, 401, 201]


async def test_an_act_is_refused_for_a_time_that_has_passed_and_a_parent_that_has_ended(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await both(submitted)
    late = {"configuration": {**TASK, "start_before": "2020-01-01T00:00:00Z"}}
    refused = await follower.post(TOGETHER, {"runs": [{"configuration": TASK}, late]})
    assert refused == await leader.post(TOGETHER, {"runs": [{"configuration": TASK}, late]})
    assert (refused[0], refused[1]["error"]["field"]) == (400, "runs[1].start_before")
    parent = (await leader.submit(name="parent"))[1]["id"]
    assert (await leader.post(f"{ONE}/{parent}/stop", {}))[0] == 200

    async def gone(_: object) -> None:
        raise ParentGone(parent)

    monkeypatch.setattr(submitted.controller.pipeline, "admit_together", gone)
    refused = await follower.post(TOGETHER, {"runs": [{"configuration": TASK}]})
    assert (refused[0], refused[1]["error"]["code"]) == (409, "parent_ended")
