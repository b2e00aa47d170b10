"""A host is reached by its name, at whichever of its addresses it listens."""

from __future__ import annotations

import asyncio
import gc
import socket
from functools import partial
from typing import Any

import pytest
import uvloop

from common.links.dialling import dial

NOWHERE = "a." * 127 + "a"
"""A name that is too long for DNS: nobody is asked for it (RFC 1035, 2.3.4)."""
# From its first loop on, libuv keeps a pipe for signals, which would look like a leak of the test.
uvloop.new_event_loop().close()


def test_a_look_up_that_is_cancelled_leaves_nothing_behind() -> None:
    told: list[dict[str, Any]] = []

    async def leave() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        dialling = asyncio.create_task(dial(NOWHERE, 80, partial(asyncio.open_connection, port=80)))
        # Both run up to the look-up, which uvloop gives to a thread.
        await asyncio.sleep(0)
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling
        # Its threads answer in turn: the one that was left behind has its answer by then.
        for _ in range(4):
            with pytest.raises(socket.gaierror):
                await loop.getaddrinfo(NOWHERE, 80)
        gc.collect()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(leave())
    assert told == []


@pytest.mark.parametrize("name", [NOWHERE, "a" * 64])
async def test_a_name_that_is_not_known_is_an_os_error(name: str) -> None:
    async def connect(_: str) -> None:
        raise AssertionError("it has no address")

    with pytest.raises(socket.gaierror):
        await dial(name, 80, connect)


async def _several(*_: object, **__: object) -> list[object]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{n}", 80)) for n in (1, 2, 3)]


async def test_the_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", _several)
    tried: list[str] = []

    async def connect(address: str) -> str:
        tried.append(address)
        if address != "192.0.2.2":
            raise ConnectionRefusedError
        return "connected"

    assert await dial("several", 80, connect) == "connected"
    assert tried == ["192.0.2.1", "192.0.2.2"]


async def test_the_last_address_tells_why_none_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", _several)

    async def connect(address: str) -> None:
        raise ConnectionRefusedError(address)

    with pytest.raises(ConnectionRefusedError, match=r"192\.0\.2\.3"):
        await dial("several", 80, connect)


@pytest.mark.parametrize("address", ["192.0.2.1", "::1", "fe80::1%eth0"])
async def test_an_address_is_taken_as_it_is(address: str) -> None:
    async def connect(found: str) -> str:
        return found

    assert await dial(address, 80, connect) == address
