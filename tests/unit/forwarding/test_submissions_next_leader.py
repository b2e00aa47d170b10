"""Submissions that a follower holds, or whose leader ends: never done twice, and none is lost."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from controller.api.http.holding import Room, held_size
from controller.forwarding.leader_links import LeaderLinks
from controller.store.errors import LeaseTaken, NotKnown, StoreHangs, StoreUnavailable
from tests.support.waiting import eventually
from tests.unit.api.conftest import USER_TOKEN
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


async def keyed_and_not(
    leader: ALeader, follower: AFollower
) -> tuple[asyncio.Task[Answer], asyncio.Task[Answer]]:
    """Return two submissions in one message that the leader does not answer."""
    first = await on_the_way(leader, follower)
    keyed = asyncio.create_task(follower.submit(name="keyed", client_key="a"))
    other = asyncio.create_task(follower.submit(name="other"))
    await eventually(lambda: waiting_at(follower) == 2)
    leader.goes_on.set()
    await first
    leader.goes_on.clear()
    await eventually(lambda: len(leader.messages[-1].asked) == 2)
    return keyed, other


@pytest.mark.parametrize("is_killed", [True, False])
async def test_of_a_message_whose_leader_ends_those_with_a_key_go_to_the_next_one(
    submitted: Bed, *, is_killed: bool
) -> None:
    first, follower = await both(submitted)
    second = await submitted.leader("two")
    keyed, other = await keyed_and_not(first, follower)
    if is_killed:
        first.abort()
    await follower.lead_to(second)
    assert (await keyed)[0] == 201
    assert [one.asked[0].submissions[0].client_key for one in second.messages] == ["a"]
    if not is_killed:
        # Its leader is paused, and may do it.
        assert not other.done()
        first.abort()
    with pytest.raises(aiohttp.ClientConnectionError):
        await other


async def test_a_leader_that_is_paused_keeps_nobody_from_the_next_one(submitted: Bed) -> None:
    first, follower = await both(submitted)
    other = await on_the_way(first, follower, name="other")
    second = await submitted.leader("two")
    await follower.lead_to(second)
    assert (await follower.submit(name="one"))[0] == 201
    assert not other.done()
    first.goes_on.set()
    assert (await other)[0] == 201


async def test_a_slow_message_keeps_the_next_ones_waiting_for_a_moment_only(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await both(submitted)
    monkeypatch.setattr("controller.forwarding.submissions.batches.SLOW_SECONDS", 0.0)
    sending = [await on_the_way(leader, follower, name=f"run-{n}") for n in range(3)]
    leader.goes_on.set()
    assert [(await one)[0] for one in sending] == [201] * 3


async def test_it_waits_while_nobody_leads_and_its_answer_tells_how_long(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await both(submitted)
    monkeypatch.setattr("controller.forwarding.submissions.answering.WORTH_TELLING", 0.0)
    await follower.lead_to(None)
    waiting = [asyncio.create_task(follower.submit(name=f"run-{n}")) for n in range(3)]
    await eventually(lambda: waiting_at(follower) == 3)
    await follower.lead_to(leader)
    answers = [await one for one in waiting]
    assert [one[0] for one in answers] == [201] * 3
    assert all(float(one[2]["Fairlead-Held-Seconds"]) >= 0.0 for one in answers)
    assert [len(one.asked) for one in leader.messages] == [3]


async def test_one_that_no_leader_takes_in_time_or_that_has_no_room_is_refused(
    submitted: Bed,
) -> None:
    _, follower = await both(submitted)
    forwarder = follower.follower.forwarder
    await follower.lead_to(None)
    room = forwarder._room = Room(1)
    held = asyncio.create_task(follower.submit(name="held"))
    await eventually(lambda: room.held == 1)
    status, refused, headers = await follower.submit(name="too-much")
    assert (status, refused["error"]["code"]) == (503, "leads_no_more")
    assert headers["Retry-After"] == "1"
    assert not held.done()
    held.cancel()
    await eventually(lambda: room.held == 0)
    forwarder._hold_seconds = 0.0
    status, refused, _ = await follower.submit(name="late")
    assert (status, refused["error"]["code"]) == (503, "leads_no_more")


async def test_a_client_that_leaves_before_it_is_sent_makes_no_run(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    await follower.lead_to(None)
    leaving = asyncio.create_task(follower.submit(name="left"))
    await eventually(lambda: waiting_at(follower) == 1)
    leaving.cancel()
    await eventually(lambda: waiting_at(follower) == 0)
    await follower.lead_to(leader)
    assert (await follower.submit(name="one"))[0] == 201
    assert [one.asked[0].submissions[0].name for one in leader.messages] == ["one"]


async def test_a_client_that_leaves_later_changes_nothing_for_others(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    keyed, other = await keyed_and_not(leader, follower)
    keyed.cancel()
    await asyncio.gather(keyed, return_exceptions=True)
    leader.goes_on.set()
    assert (await other)[0] == 201


async def test_a_follower_that_is_stopped_holds_nothing_and_answers_what_is_on_its_way(
    submitted: Bed,
) -> None:
    leader, follower = await both(submitted)
    sending = await on_the_way(leader, follower, name="one")
    await follower.lead_to(None)
    held = asyncio.create_task(follower.submit(name="two"))
    await eventually(lambda: waiting_at(follower) == 1)
    follower.follower.leave()
    stopping = asyncio.create_task(follower.follower.until_answered())
    status, refused, headers = await held
    assert (status, refused["error"]["code"]) == (503, "leads_no_more")
    assert headers["Connection"] == "close"
    leader.goes_on.set()
    assert (await sending)[0] == 201
    await stopping


async def test_a_leader_in_doubt_that_learns_of_another_one_leaves_all_of_it_to_that_one(
    submitted: Bed,
) -> None:
    first, follower = await both(submitted)
    second = await submitted.leader("two")
    # It holds changes: its lease is about to end.
    first.now = 3600.0
    held = [asyncio.create_task(follower.submit(name=f"run-{n}")) for n in range(2)]
    await eventually(lambda: first.lead._known is not None)
    await follower.lead_to(second)
    first.lead.end()
    assert [(await one)[0] for one in held] == [201, 201]
    assert first.messages == []


async def test_a_leader_in_doubt_for_all_the_time_refuses_all_of_it(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    leader.now = 3600.0
    held = asyncio.create_task(follower.submit(name="one"))
    await eventually(lambda: leader.lead._known is not None)
    leader.lead.end()
    refused = await held
    assert refused == await leader.submit(name="one")
    assert (refused[0], refused[1]["error"]["code"]) == (503, "leads_no_more")


async def test_a_leader_that_leaves_does_nothing_more_of_what_it_is_given(submitted: Bed) -> None:
    first, follower = await both(submitted)
    second = await submitted.leader("two")
    await first.links.leave()
    late = asyncio.create_task(follower.submit(name="one"))
    await eventually(lambda: follower.follower._links._left == first.at)
    await follower.lead_to(second)
    assert (await late)[0] == 201
    assert (first.messages, len(second.messages)) == ([], 1)


async def test_a_replaced_leader_says_of_each_that_nothing_was_done(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, follower = await both(submitted)
    second = await submitted.leader("two")
    pipeline = submitted.controller.pipeline
    own = pipeline.admit_all

    async def taken(states: object) -> list[Exception | None]:
        monkeypatch.setattr(pipeline, "admit_all", own)
        raise LeaseTaken("another controller has taken over")

    monkeypatch.setattr(pipeline, "admit_all", taken)
    sending = asyncio.create_task(follower.submit(name="one"))
    await eventually(lambda: follower.follower._links._left == first.at)
    await follower.lead_to(second)
    assert (await sending)[0] == 201
    assert (len(first.messages), len(second.messages)) == (1, 1)


async def test_one_of_which_it_is_not_known_goes_to_the_next_leader_if_it_has_a_key(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, follower = await both(submitted)
    second = await submitted.leader("two")
    pipeline = submitted.controller.pipeline
    own = pipeline.admit_all

    async def failed(states: list[object]) -> list[Exception | None]:
        monkeypatch.setattr(pipeline, "admit_all", own)
        return [NotKnown("it is stopping") for _ in states]

    keyed, other = await keyed_and_not(first, follower)
    monkeypatch.setattr(pipeline, "admit_all", failed)
    first.goes_on.set()
    answer = await other
    assert (answer[0], answer[1]["error"]["code"]) == (503, "store_unavailable")
    assert not keyed.done()
    await follower.lead_to(second)
    assert (await keyed)[0] == 201
    assert len(second.messages) == 1


async def test_a_database_that_fails_for_all_is_told_in_the_leaders_words(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await both(submitted)

    async def away(keys: object) -> object:
        raise StoreUnavailable("it is away")

    submissions = submitted.controller.service.runs.submissions
    monkeypatch.setattr(submissions._earlier, "of_all", away)
    refused = await follower.submit(name="one", client_key="a")
    assert refused == await leader.submit(name="one", client_key="a")
    assert (refused[0], refused[1]["error"]["code"]) == (503, "store_unavailable")


async def test_without_the_database_what_is_right_is_given_and_what_is_refused_passed_on(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await both(submitted)

    async def away() -> object:
        raise StoreHangs("it hangs")

    monkeypatch.setattr(follower.following, "now", away)
    assert (await follower.submit(name="one"))[0] == 201
    assert (len(leader.messages), leader.passed_on.total()) == (1, 0)
    body = {"configuration": TASK}
    assert (await follower.post("/v1/runs", body, "unknown"))[0] == 401
    assert leader.passed_on.total() == 1


async def test_a_copy_that_is_read_again_holds_up_nobody(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    follower.following._copy = None
    assert (await follower.submit(name="one"))[0] == 201
    assert (len(leader.messages), leader.passed_on.total()) == (1, 0)


async def test_without_a_copy_and_as_the_leader_itself_it_passes_each_one_on(
    submitted: Bed,
) -> None:
    leader, follower = await both(submitted)
    follower.following._submitters = None
    assert (await follower.submit(name="one"))[0] == 201
    follower.follower.forwarder.is_leading = True
    assert (await follower.submit(name="two"))[0] == 201
    assert (leader.messages, leader.passed_on.total()) == ([], 2)


async def test_a_client_of_the_leader_cannot_give_submissions_as_a_follower_does(
    submitted: Bed,
) -> None:
    leader, follower = await both(submitted)
    path = "/v1/controllers/submissions"
    for at in (leader, follower):
        status, refused, _ = await at.post(path, b"", USER_TOKEN, **{"Fairlead-Client": "follower"})
        assert (status, refused["error"]["code"]) == (404, "not_found")
    assert leader.messages == []


async def test_what_waits_is_counted_with_its_plan(submitted: Bed) -> None:
    """A short file can have a long one."""
    _, follower = await both(submitted)
    await follower.lead_to(None)
    room = follower.follower.forwarder._room = Room()
    waiting = asyncio.create_task(follower.submit(name="one"))
    await eventually(lambda: room.held == 1)
    assert len(json.dumps({"configuration": TASK, "name": "one"})) < 500
    assert room.held_bytes > held_size(1500)
    waiting.cancel()
    await eventually(lambda: (room.held, room.held_bytes) == (0, 0))


async def test_a_run_that_is_stored_is_answered_though_it_cannot_be_read_again(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await both(submitted)
    sending = await on_the_way(leader, follower, name="one")

    async def away(_: str) -> None:
        raise StoreUnavailable("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(submitted.controller.service.runs.submissions._runs, "get", away)
        leader.goes_on.set()
        status, run, _ = await sending
    assert (status, run["name"], run["status"]) == (201, "one", "submitted")


async def test_an_unknown_fault_of_a_connection_is_told_at_once(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, follower = await both(submitted)
    asked = 0

    async def fail(*_: object) -> None:
        nonlocal asked
        asked += 1
        raise RuntimeError("the library is at fault")

    with monkeypatch.context() as patch:
        patch.setattr(LeaderLinks, "get", fail)
        assert ((await follower.submit())[0], asked) == (500, 1)
    assert (await follower.submit())[0] == 201
