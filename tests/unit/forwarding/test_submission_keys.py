"""A client key makes one run, whichever controllers its requests reach, and in whichever order."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import eventually
from tests.unit.forwarding.submitting import TASK, Bed, both, on_the_way, waiting_at

OTHER = {**TASK, "image": "debian"}


async def test_a_key_that_made_a_run_gives_that_run_again(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    first = await follower.submit(name="one", client_key="a")
    assert await follower.submit(name="one", client_key="a") == first
    assert await leader.submit(name="one", client_key="a") == first
    other = await follower.submit(configuration=OTHER, client_key="a")
    assert other == await leader.submit(configuration=OTHER, client_key="a")
    assert (other[0], other[1]["error"]["code"]) == (409, "client_key_used")
    assert leader.passed_on.total() == 0


async def test_a_key_twice_in_one_message_makes_one_run(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    first = await on_the_way(leader, follower)
    twice = [asyncio.create_task(follower.submit(name="one", client_key="a")) for _ in range(2)]
    await eventually(lambda: waiting_at(follower) == 2)
    leader.goes_on.set()
    await first
    answers = [await one for one in twice]
    assert answers[0] == answers[1]
    assert answers[0][0] == 201
    # The second one of the message waits for the first one alone.
    assert leader.passed_on.total() == 1


async def test_a_key_at_two_followers_at_once_makes_one_run(submitted: Bed) -> None:
    leader, one = await both(submitted)
    two = await submitted.follower(leader)
    sending = [await on_the_way(leader, at, name="one", client_key="a") for at in (one, two)]
    leader.goes_on.set()
    answers = [await sent for sent in sending]
    assert answers[0] == answers[1]
    assert answers[0][0] == 201


async def test_a_key_that_is_at_work_keeps_no_other_one_waiting(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    service = submitted.controller.service
    async with service.runs.submissions._lock(service.accounts.gate.users["ada"], "a"):
        busy = asyncio.create_task(follower.submit(client_key="a"))
        await eventually(lambda: leader.passed_on.total() == 1)
        assert (await follower.submit(client_key="b"))[0] == 201
        assert not busy.done()
    assert (await busy)[0] == 201


async def test_a_name_twice_in_one_message_is_judged_as_by_the_leader(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    first = await on_the_way(leader, follower)
    twice = [asyncio.create_task(follower.submit(name="one")) for _ in range(2)]
    await eventually(lambda: waiting_at(follower) == 2)
    kept = asyncio.create_task(follower.submit(name="one", if_exists="keep"))
    await eventually(lambda: waiting_at(follower) == 3)
    leader.goes_on.set()
    await first
    answers = [await one for one in twice]
    assert sorted(one[0] for one in answers) == [201, 409]
    made = next(one[1]["id"] for one in answers if one[0] == 201)
    status, run, _ = await kept
    assert (status, run["id"]) == (200, made)


async def test_a_repeated_submission_whose_time_has_passed_gives_its_run(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the key it would be refused by now, at the follower, too."""
    leader, follower = await both(submitted)
    timed = {**TASK, "start_before": "2100-01-01T00:00:00Z"}
    first = await follower.submit(configuration=timed, client_key="a")
    assert first[0] == 201
    clock = submitted.controller.service.clock
    monkeypatch.setattr(type(clock), "now", lambda _: 5e9)
    again = await follower.submit(configuration=timed, client_key="a")
    assert (again[0], again[1]["id"]) == (201, first[1]["id"])
    for body in ({"client_key": "b"}, {}):
        refused = await follower.submit(configuration=timed, **body)
        assert refused == await leader.submit(configuration=timed, **body)
        assert refused[1]["error"]["field"] == "start_before"
    assert leader.passed_on.total() == 0


async def test_a_key_is_known_to_have_made_a_run_though_its_file_is_refused_now(
    submitted: Bed,
) -> None:
    leader, follower = await both(submitted)
    await follower.submit(client_key="a")
    wrong = {**TASK, "colour": "red"}
    refused = await follower.submit(configuration=wrong, client_key="a")
    assert refused == await leader.submit(configuration=wrong, client_key="a")
    assert refused[1]["error"]["code"] == "client_key_used"
    assert leader.passed_on.total() == 1


async def test_a_name_is_kept_or_replaced_as_the_leader_does_it(submitted: Bed) -> None:
    _, follower = await both(submitted)
    _, run, _ = await follower.submit(name="one", client_key="a")
    status, kept, _ = await follower.submit(name="one", client_key="b", if_exists="keep")
    assert (status, kept["id"]) == (200, run["id"])
    status, replaced, _ = await follower.submit(name="one", client_key="c", if_exists="replace")
    # A run that waits for a node ends at once.
    assert status == 201
    assert replaced["id"] != run["id"]


async def test_a_key_of_two_acts_at_once_makes_one_run(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one waits for the first one, which waits for the second one for a moment only."""
    leader, follower = await both(submitted)
    monkeypatch.setattr("controller.service.runs.shared_turns.MOMENT_SECONDS", 0.0)
    first = await on_the_way(leader, follower)
    sending = []
    for keys in ("ab", "b"):
        runs = [{"configuration": TASK, "client_key": key} for key in keys]
        sending.append(asyncio.create_task(follower.post("/v1/runs/together", {"runs": runs})))
        await eventually(lambda: waiting_at(follower) == len(sending))
    leader.goes_on.set()
    await first
    act, alone = [await one for one in sending]
    assert (act[0], alone[0]) == (201, 201)
    assert [one["id"] for one in alone[1]["runs"]] == [act[1]["runs"][1]["id"]]
