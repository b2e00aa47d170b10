"""Answers of the leader for which several of one user's pages ask at once: asked for once.

A change wakes all open pages, and all of them ask for the same rows. Nothing is kept: each gets an
answer for which the leader was asked after he had asked here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

import msgspec
from aiohttp import web

from common.proxy.headers import head_of
from common.proxy.upstream import UpstreamError
from controller.forwarding.leader_links import LeaderLinks, NobodyLeads, NoLink
from controller.relay import HOLD_SECONDS, while_it_leads

MAX_BYTES = 4 << 20
_KEPT_HEADERS = frozenset(("content-type", "content-encoding", "cache-control"))


class LeaderAnswer(msgspec.Struct, frozen=True):
    """An answer 200. `headers`: those that tell what it is."""

    headers: tuple[tuple[str, str], ...]
    body: bytes

    def response(self) -> web.Response:
        return web.Response(body=self.body, headers=dict(self.headers))


async def ask_leader(
    links: LeaderLinks, target: str, headers: list[tuple[str, str]]
) -> LeaderAnswer | None:
    """Ask for what only reads; None: the leader did not answer 200, or nobody led in time."""
    try:
        link = await links.get(HOLD_SECONDS)
    except (NobodyLeads, NoLink):
        return None
    connection, body = link.connection, bytearray()
    is_whole = False
    try:
        await connection.send(head_of("GET", target, headers))
        head = await while_it_leads(connection.answer("GET"), link.over)
        while head.status == 200 and len(body) <= MAX_BYTES:
            if not (data := await while_it_leads(connection.read(), link.over)):
                is_whole = True
                break
            body += data
    except (UpstreamError, ConnectionError):
        return None
    finally:
        if is_whole:
            link.give_back()
        else:
            connection.close()
    kept = tuple((name, value) for name, value in head.headers if name.lower() in _KEPT_HEADERS)
    return LeaderAnswer(kept, bytes(body)) if is_whole else None


Ask = Callable[[], Awaitable[LeaderAnswer | None]]


class _Asked:
    """`now`: the question that is under way; `next`: the one after it, for who asks meanwhile."""

    def __init__(self) -> None:
        self.now: asyncio.Task[LeaderAnswer | None] | None = None
        self.next: asyncio.Task[LeaderAnswer | None] | None = None


class SharedAnswers:
    def __init__(self) -> None:
        self._asked: dict[Hashable, _Asked] = {}

    async def get(self, key: Hashable, ask: Ask) -> LeaderAnswer | None:
        """Return what `ask` gives, begun after this call, or what an equal question gives."""
        asked = self._asked.setdefault(key, _Asked())
        if asked.now is None:
            asked.now = task = asyncio.create_task(self._ask(key, asked, ask))
        elif asked.next is None:
            asked.next = task = asyncio.create_task(self._ask_after(asked.now, key, asked, ask))
        else:
            task = asked.next
        # A page that leaves must not cancel the answer for which others wait.
        return await asyncio.shield(task)

    async def close(self) -> None:
        tasks = [one for asked in self._asked.values() for one in (asked.now, asked.next) if one]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, key: Hashable, asked: _Asked, ask: Ask) -> LeaderAnswer | None:
        try:
            return await ask()
        finally:
            asked.now = None
            if asked.next is None and self._asked.get(key) is asked:
                del self._asked[key]

    async def _ask_after(
        self,
        first: asyncio.Task[LeaderAnswer | None],
        key: Hashable,
        asked: _Asked,
        ask: Ask,
    ) -> LeaderAnswer | None:
        await asyncio.wait((first,))
        asked.now, asked.next = asyncio.current_task(), None
        return await self._ask(key, asked, ask)
