"""An upload through a follower waits for a slow leader, and leaves one that was replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import ClientResponse

from controller import relay
from controller.forwarding import forwarder
from tests.support.waiting import LONG, eventually
from tests.unit.forwarding.passing import BIG, ALeader, Bed


async def _pieces(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // len(BIG)):
        yield BIG


async def _stuck(bed: Bed, first: ALeader, size: int) -> asyncio.Task[ClientResponse]:
    """An upload that a leader has begun to read, and reads no further."""
    bed.lead_to(first)
    data: bytes | AsyncIterator[bytes] = b"x" * size if size < len(BIG) else _pieces(size)
    put = bed.session.put(bed.url + "/v1/blobs/d", data=data)
    sending = asyncio.create_task(put)
    await first.begun.wait()
    return sending


async def test_an_upload_waits_for_a_leader_that_reads_nothing_for_a_while(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk may be slow. Nothing looks whether it leads on before it takes all."""
    monkeypatch.setattr(relay, "LEFT_SECONDS", 0.01)
    leader = await bed.leader()
    sending = await _stuck(bed, leader, 24 << 20)
    term = bed.follower._links._term
    assert term is not None
    looks = 0

    def is_over() -> bool:
        nonlocal looks
        looks += 1
        return False

    monkeypatch.setattr(term.over, "is_set", is_over)
    await eventually(lambda: looks > 2)
    leader.goes_on.set()
    assert await (await sending).text() == str(24 << 20)


async def test_an_upload_leaves_a_leader_that_takes_no_more_and_was_replaced(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be paused. The client has the bytes, and begins again at its next address."""
    monkeypatch.setattr(relay, "LEFT_SECONDS", 0.01)
    monkeypatch.setattr(forwarder, "UPLOAD_SECONDS", 0.01)
    first, second = await bed.leader(), await bed.leader("two")
    sending = await _stuck(bed, first, 24 << 20)
    bed.lead_to(second)
    with pytest.raises(aiohttp.ClientError):
        await sending


@pytest.mark.parametrize("answers", [True, False])
async def test_a_replaced_leader_that_has_an_upload_whole_may_answer_for_a_while(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    monkeypatch.setattr(forwarder, "UPLOAD_SECONDS", LONG if answers else 0.01)
    first, second = await bed.leader(), await bed.leader("two")
    sending = await _stuck(bed, first, 100_000)
    bed.lead_to(second)
    # This client sends a PUT whose connection is cut once more by itself.
    (first if answers else second).goes_on.set()
    assert await (await sending).text() == "100000"
    assert second.begun.is_set() is not answers


async def test_a_small_upload_goes_to_the_next_leader(bed: Bed) -> None:
    first, second = await bed.leader(), await bed.leader("two")
    second.goes_on.set()
    sending = await _stuck(bed, first, 1000)
    bed.lead_to(second)
    assert await (await sending).text() == "1000"
    assert second.begun.is_set()
