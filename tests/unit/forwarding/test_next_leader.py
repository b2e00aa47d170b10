"""What comes while nobody leads, or goes to the next leader: never twice if that may harm."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import ClientResponse

from common.proxy.upstream import ReplicaConnection
from controller.api.http.errors import leaves, not_known_to_be_done
from controller.api.http.holding import Room
from controller.daemon.lease import Leading
from controller.forwarding import forwarder
from controller.forwarding.follower_links import (
    HELD,
    NOT_DONE,
    PERHAPS_DONE,
)
from controller.relay import Leader, leader_at
from fairlead.connections.order_keys import ORDER_KEY
from tests.support.waiting import LONG, eventually
from tests.unit.forwarding.passing import BIG, ALeader, Bed, abort, at


async def test_a_request_waits_until_somebody_leads(bed: Bed) -> None:
    first = await bed.leader()
    bed.lead_to(first)
    async with bed.session.get(bed.url + "/seen") as answer:
        assert (await answer.json())["by"] == "one"
    bed.relay.lead_to(None)
    waiting = asyncio.create_task(bed.session.post(bed.url + "/v1/stop", data=b"{}"))
    second = await bed.leader("two")
    second.goes_on.set()
    bed.lead_to(second)
    assert await (await waiting).text() == "two"
    assert first.writes == 0


async def test_nobody_waits_for_a_connection_to_a_leader_that_is_followed(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that vanished takes no connection: all would wait, one after the other."""
    vanished, second = leader_at("http://vanished:1", "one"), await bed.leader("two")
    has_asked, links = asyncio.Event(), bed.follower._links
    own = links._open

    async def never(to: Leader, over: asyncio.Event) -> ReplicaConnection:
        if to != vanished:
            return await own(to, over)
        has_asked.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    monkeypatch.setattr(links, "_open", never)
    bed.relay.lead_to(vanished)
    waiting = [asyncio.create_task(bed.session.get(bed.url + "/seen")) for _ in range(3)]
    await has_asked.wait()
    bed.lead_to(second)
    for task in waiting:
        assert (await (await task).json())["by"] == "two"


async def test_a_request_that_no_leader_takes_in_time_is_refused_as_not_done(bed: Bed) -> None:
    bed.lead_to(await bed.leader())
    async with bed.session.get(bed.url + "/seen") as answer:
        await answer.read()
    bed.relay.lead_to(None)
    bed.follower.forwarder._hold_seconds = 0.0
    async with bed.session.post(bed.url + "/v1/runs") as answer:
        assert answer.status == 503
        assert (await answer.json())["error"]["code"] == "leads_no_more"


async def test_a_new_connection_while_nobody_leads_is_told_so(bed: Bed) -> None:
    bed.follower.forwarder._hold_seconds = 0.0
    # A leader that has just died is still the last one that was seen.
    for last in (None, leader_at("http://127.0.0.1:1", "dead")):
        bed.relay.lead_to(last)
        async with (
            aiohttp.ClientSession() as session,
            session.post(bed.url + "/v1/runs") as answer,
        ):
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
            assert "no controller leads" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/stop", b"{}"),
        ("/v1/runs", b"{}"),
        ("/v1/runs", b"no json"),
        ("/v1/runs:yaml", b"{}"),
        ("/v1/runs", BIG),
        ("/v1/runs:batch", b'{"runs": [{"client_key": "a"}, {"name": "b"}]}'),
        ("/v1/runs:batch", b'{"runs": []}'),
        ("/v1/runs/together", b'{"runs": [{"client_key": ""}]}'),
        ("/v1/stop", b'{"runs": [{"client_key": "a"}]}'),
        # By then it may be the name of another run, or the next attempt of the job.
        ("/v1/runs/train/stop", b"{}"),
        ("/v1/runs/0123456789abcdef/jobs/j/abort", b"{}"),
        ("/v1/runs/0123456789abcdef/stop", BIG),
    ],
)
async def test_a_write_whose_leader_died_is_never_sent_to_the_next_one(
    bed: Bed, path: str, body: bytes
) -> None:
    first, second = await bed.leader(), await bed.leader("two")
    second.goes_on.set()
    bed.lead_to(first)
    sending = asyncio.create_task(bed.session.post(bed.url + path, data=body))
    await first.begun.wait()
    abort(first)
    bed.lead_to(second)
    with pytest.raises(aiohttp.ClientConnectionError):
        await sending
    assert second.writes == 0


@pytest.mark.parametrize("is_paused", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/runs", {"client_key": "k", "more": 1}),
        ("/v1/runs:yaml", {"client_key": "k", "source": "type: task"}),
        ("/v1/runs:batch", {"runs": [{"client_key": "a", "more": 1}, {"client_key": "b"}]}),
        ("/v1/runs/together", {"runs": [{"client_key": "a"}]}),
        ("/v1/runs/0123456789abcdef/stop", {"abort": False}),
        ("/v1/runs/0123456789abcdef/scale", {"group": "main", "nodes": 2}),
    ],
)
async def test_a_write_that_may_be_done_twice_and_a_read_go_to_the_next_leader(
    bed: Bed, path: str, body: dict[str, object], *, is_paused: bool
) -> None:
    first, second = await bed.leader(), await bed.leader("two")
    second.goes_on.set()
    bed.lead_to(first)
    sending = asyncio.create_task(bed.session.post(bed.url + path, json=body))
    reading = asyncio.create_task(bed.session.get(bed.url + "/wait"))
    await eventually(lambda: first.writes == 1 and first.begun.is_set())
    if not is_paused:
        abort(first)
    bed.lead_to(second)
    for task in (sending, reading):
        assert await (await task).text() == "two"


@pytest.mark.parametrize("given", [None, "clients"])
async def test_a_repeated_order_has_the_same_key_at_each_leader(
    bed: Bed, given: str | None
) -> None:
    first, second = await bed.leader(), await bed.leader("two")
    second.goes_on.set()
    bed.lead_to(first)
    url = f"{bed.url}/v1/runs/0123456789abcdef/suspend"
    headers = {} if given is None else {ORDER_KEY: given}
    sending = asyncio.create_task(bed.session.post(url, data=b"{}", headers=headers))
    await first.begun.wait()
    abort(first)
    bed.lead_to(second)
    assert await (await sending).text() == "two"
    await bed.session.post(url, data=b"{}", headers=headers)
    (key,) = first.order_keys
    assert key == second.order_keys[0] is not None
    assert (second.order_keys[1] == key) is (given is not None)
    await bed.session.post(f"{bed.url}/v1/runs/train/suspend", data=b"{}")
    assert second.order_keys[2] is None


async def test_a_leader_that_leaves_does_nothing_more_and_its_requests_go_to_the_next_one(
    bed: Bed,
) -> None:
    first, second = await bed.leader(), await bed.leader("two")
    second.goes_on.set()
    bed.lead_to(first)
    begun = asyncio.create_task(bed.session.post(bed.url + "/v1/stop", data=b"{}"))
    await first.begun.wait()
    async with bed.session.get(bed.url + "/seen") as answer:
        assert (await answer.json())["by"] == "one"
    assert first.links is not None
    await first.links.leave()
    late = asyncio.create_task(bed.session.post(bed.url + "/v1/stop", data=b"{}"))
    await eventually(lambda: bed.follower._links._left == at(first))
    # What the database shows is still the leader that leaves.
    bed.lead_to(first)
    first.goes_on.set()
    assert await (await begun).text() == "one"
    bed.lead_to(second)
    answer = await late
    assert await answer.text() == "two"
    assert NOT_DONE not in answer.headers
    assert (first.writes, second.writes) == (1, 1)


async def in_doubt(bed: Bed, name: str = "one") -> tuple[ALeader, Leading]:
    """Return a leader that could not renew its lease for a while."""
    leader, lead = await bed.leader(name), Leading(5.0, lambda: 0.0)
    leader.lead = lead
    leader.goes_on.set()
    return leader, lead


async def held_change(bed: Bed, leader: ALeader, lead: Leading) -> asyncio.Task[ClientResponse]:
    """Return a change without a client key that this leader, in doubt, holds."""
    bed.lead_to(leader)
    held = asyncio.create_task(bed.session.post(bed.url + "/v1/stop", data=b"{}"))
    await eventually(lambda: lead._known is not None)
    return held


async def test_a_change_that_a_leader_in_doubt_holds_is_done_there_when_it_is_sure_again(
    bed: Bed,
) -> None:
    first, lead = await in_doubt(bed)
    held = await held_change(bed, first, lead)
    assert first.writes == 0
    lead.renewed(0.0)
    assert await (await held).text() == "one"
    # It is still the leader to its follower.
    async with bed.session.post(bed.url + "/v1/stop", data=b"{}") as answer:
        assert await answer.text() == "one"


async def test_a_change_that_a_leader_held_to_its_end_goes_to_the_next_one(bed: Bed) -> None:
    """It has no client key: the leader says that nothing of it was done."""
    first, lead = await in_doubt(bed)
    second = await bed.leader("two")
    second.goes_on.set()
    held = await held_change(bed, first, lead)
    bed.lead_to(second)
    lead.end()
    answer = await held
    assert await answer.text() == "two"
    assert HELD not in answer.headers
    assert (first.writes, second.writes) == (0, 1)


async def test_a_change_that_was_held_for_long_is_refused_if_nobody_else_leads(bed: Bed) -> None:
    first, lead = await in_doubt(bed)
    held = await held_change(bed, first, lead)
    lead.end()
    answer = await held
    assert answer.status == 503
    assert (await answer.json())["error"]["code"] == "leads_no_more"
    assert HELD not in answer.headers


async def test_a_change_that_a_leader_held_until_it_left_waits_for_the_next_one(bed: Bed) -> None:
    first, lead = await in_doubt(bed)
    second = await bed.leader("two")
    second.goes_on.set()
    held = await held_change(bed, first, lead)
    assert first.links is not None
    leaving = asyncio.create_task(first.links.leave())
    await asyncio.sleep(0)
    lead.end()
    await eventually(lambda: bed.follower._links._left == at(first))
    await leaving
    bed.lead_to(second)
    assert await (await held).text() == "two"
    assert first.writes == 0


async def test_a_change_that_a_leader_held_for_all_its_time_still_goes_to_the_next_one(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader can't reach its database, so it does not know that another one leads."""
    monkeypatch.setattr(forwarder, "AGAIN_SECONDS", LONG)
    first, lead = await in_doubt(bed)
    second = await bed.leader("two")
    second.goes_on.set()
    bed.lead_to(first)
    async with bed.session.get(bed.url + "/seen") as answer:
        await answer.read()
    # The link that is kept takes no time.
    bed.follower.forwarder._hold_seconds = 0.0
    held = await held_change(bed, first, lead)
    bed.lead_to(second)
    lead.end()
    assert await (await held).text() == "two"
    assert (first.writes, second.writes) == (0, 1)


async def test_a_change_of_which_a_replaced_leader_did_nothing_goes_to_the_next_one(
    bed: Bed,
) -> None:
    """It has no client key, and the follower has not yet seen that another one leads."""
    first, second = await bed.leader(), await bed.leader("two")
    second.goes_on.set()
    first.refuses = leaves
    bed.lead_to(first)
    sending = asyncio.create_task(bed.session.post(bed.url + "/v1/stop", data=b"{}"))
    await eventually(lambda: bed.follower._links._left == at(first))
    bed.lead_to(second)
    answer = await sending
    assert await answer.text() == "two"
    assert NOT_DONE not in answer.headers


async def test_a_change_that_a_leader_may_have_done_goes_to_the_next_one_if_it_may_be_sent_twice(
    bed: Bed,
) -> None:
    first, second = await bed.leader(), await bed.leader("two")
    second.goes_on.set()
    first.refuses = not_known_to_be_done
    bed.lead_to(first)
    keyed = asyncio.create_task(
        bed.session.post(bed.url + "/v1/runs", json={"client_key": "k", "more": 1})
    )
    await first.begun.wait()
    async with bed.session.post(bed.url + "/v1/runs", json={}) as answer:
        assert answer.status == 503
        assert (await answer.json())["error"]["code"] == "store_unavailable"
        assert PERHAPS_DONE not in answer.headers
    assert not keyed.done()
    bed.lead_to(second)
    assert await (await keyed).text() == "two"
    assert second.writes == 1


async def test_a_change_that_a_leader_may_have_done_is_answered_if_nobody_else_leads(
    bed: Bed,
) -> None:
    first = await bed.leader()
    first.refuses = not_known_to_be_done
    bed.lead_to(first)
    async with bed.session.get(bed.url + "/seen") as answer:
        await answer.read()
    # The link that is kept takes no time.
    bed.follower.forwarder._hold_seconds = 0.0
    async with bed.session.post(bed.url + "/v1/runs", json={"client_key": "k"}) as answer:
        assert (await answer.json())["error"]["code"] == "store_unavailable"


async def test_what_waits_for_a_leader_at_a_follower_is_bounded(bed: Bed) -> None:
    leader = await bed.leader()
    bed.lead_to(leader)
    # Two connections that the follower serves: a new one is held before it can say anything.
    both = [asyncio.create_task(bed.session.get(bed.url + "/wait")) for _ in range(2)]
    await eventually(lambda: bed.follower.forwarder._hang_ups.in_flight == 2)
    leader.goes_on.set()
    for task in both:
        await (await task).read()
    bed.relay.lead_to(None)
    room = bed.follower.forwarder._room = Room(1)
    held = asyncio.create_task(bed.session.get(bed.url + "/seen"))
    await eventually(lambda: room.held == 1)
    async with bed.session.post(bed.url + "/v1/runs") as answer:
        assert answer.status == 503
        assert (await answer.json())["error"]["code"] == "leads_no_more"
    held.cancel()
    await eventually(lambda: room.held == 0)
