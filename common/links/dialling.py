"""Connects to a host by name, and may be cancelled while the name is looked up."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def dial(host: str, port: int, connect: Callable[[str], Awaitable[T]]) -> T:
    """Return what `connect` returns for the first address of the host that it reaches. Raises
    OSError: what it raises for the last one, or that the name is not known.

    uvloop leaves the look-up behind when `create_connection` is cancelled, and logs its failure
    later as an exception that nobody retrieved. Its `getaddrinfo` is cancelled in good order.
    """
    *others, last = await _addresses(host, port)
    for address in others:
        with suppress(OSError):
            return await connect(address)
    return await connect(last)


async def _addresses(host: str, port: int) -> list[str]:
    """Return one at least. Raises OSError."""
    # An IPv6 address's scope ("%eth0") would be lost.
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return [host]
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is no host name") from error
    return [str(address[0]) for *_, address in found]
