"""A gateway judges odd requests as the controller's proxy does: by one table."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from tests.support.gateway_here import DOMAIN, gateway_here
from tests.support.odd_requests import (
    KEPT_OF_IT,
    ODD_ANSWER,
    ODD_REQUESTS,
    OWN_COOKIE,
    TOKEN,
    answer_odd,
    ask,
    check,
    echo,
    headers_of,
)
from tests.support.waiting import LONG

pytestmark = pytest.mark.e2e
PLAIN = ODD_REQUESTS[0]


async def test_a_gateway_judges_each_by_the_table(tmp_path: Path) -> None:
    async with gateway_here(tmp_path) as gateway:
        await gateway.serve("api", echo)
        for odd in ODD_REQUESTS:
            async with asyncio.timeout(LONG):
                status, head = await ask(gateway.http, odd, DOMAIN)
            check(odd, DOMAIN, status, head, at_gateway=True)


async def test_what_would_outlive_the_service_or_reach_others_is_taken_out_of_answers(
    tmp_path: Path,
) -> None:
    async with gateway_here(tmp_path) as gateway:
        odd = partial(answer_odd, answer=ODD_ANSWER.replace(b"DOMAIN", DOMAIN.encode()))
        await gateway.serve("api", odd)
        found = await headers_of(gateway.http, DOMAIN)
        assert await gateway.past_the_agent() == 1
    assert found <= KEPT_OF_IT
    assert len(found) == 5


async def test_no_replica_sets_a_cookie_of_ours(tmp_path: Path) -> None:
    async with gateway_here(tmp_path) as gateway:
        await gateway.serve("api", partial(answer_odd, answer=OWN_COOKIE))
        assert await headers_of(gateway.http, DOMAIN) == {b"content-length: 0"}


async def test_what_is_plain_passes_the_agent_by(tmp_path: Path) -> None:
    own = PLAIN.raw.replace(
        b"\r\n\r\n", b"\r\nAuthorization: Basic YTpi\r\nConnection: close\r\n\r\n"
    )
    async with gateway_here(tmp_path) as gateway:
        await gateway.serve("api", echo)
        for raw in (PLAIN.raw, own):
            before = await gateway.past_the_agent()
            reader, writer = await gateway.dial()
            writer.write(raw.replace(b"DOMAIN", DOMAIN.encode()))
            assert (await reader.readline()).split()[1] == b"200"
            writer.close()
            assert await gateway.past_the_agent() == before + 1


async def test_a_token_that_was_let_in_passes_the_agent_by_and_no_replica_sees_it(
    tmp_path: Path,
) -> None:
    async with gateway_here(tmp_path) as gateway:
        await gateway.serve("api", echo, auth=True)
        bearer = b"\r\nAuthorization: Bearer " + TOKEN + b"\r\n\r\n"
        raw = PLAIN.raw.replace(b"\r\n\r\n", bearer).replace(b"DOMAIN", DOMAIN.encode())
        while not await gateway.past_the_agent():
            reader, writer = await gateway.dial()
            writer.write(raw)
            assert (await reader.readline()).split()[1] == b"200"
            await reader.readuntil(b"GET /x HTTP/1.1\r\n")
            assert TOKEN not in await reader.readuntil(b"\r\n\r\n")
            writer.close()
