"""The controller's link, as the agent serves it: one WebSocket at a time, the newest."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from typing import Protocol

import msgspec
from aiohttp import WSMsgType, web

from fairlead.wire.gateway import (
    Answer,
    Applied,
    Certificates,
    Claim,
    Claimed,
    Counts,
    FromAgent,
    FromController,
    Hello,
    InFlight,
    Question,
    Reached,
    Revoked,
    Snapshot,
)
from gateway.access import ControllerAway

log = logging.getLogger(__name__)
COUNT_SECONDS = 1.0
ANSWER_SECONDS = 5.0
"""A controller that is connected answers a question within this time."""
FIRST_LINK_SECONDS = 15.0
"""A question waits for the controller so soon after the agent's start: it knows no token yet."""
_MAX_MESSAGE = 64 << 20
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(FromController)


class Served(Protocol):
    """The agent, as the link needs it."""

    def hello(self) -> Hello: ...

    async def apply(self, snapshot: Snapshot) -> Applied:
        """Serve this from now on."""

    def claim(self, host: str, seconds: float) -> str | None:
        """Reserve a host name; return why it cannot be."""

    def revoke(self, digest: str) -> None: ...

    def take_counts(self) -> Counts: ...

    def in_flight(self) -> InFlight: ...

    def reached(self) -> Reached: ...

    def certificates(self) -> Certificates: ...


class ControllerLink:
    """The link to the controller. What is said while there is none is dropped: a snapshot and the
    counts of the next second make up for it."""

    def __init__(self) -> None:
        self._websocket: web.WebSocketResponse | None = None
        self._numbers = itertools.count(1)
        self._is_linked = asyncio.Event()
        self._began = asyncio.get_running_loop().time()
        self._questions: dict[int, asyncio.Future[Answer]] = {}
        self._sending: set[asyncio.Future[None]] = set()

    @property
    def is_up(self) -> bool:
        return self._websocket is not None

    def say(self, message: FromAgent) -> None:
        """Send as soon as possible."""
        sending = asyncio.ensure_future(self._send(message))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    async def ask(self, run_id: str, digest: str, *, is_key: bool) -> Answer:
        """Ask whether a token may use a service (`gateway.access.Ask`). Raises ControllerAway."""
        if self._websocket is None:
            await self._first_link()
        number = next(self._numbers)
        answer = self._questions[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._send(Question(id=number, run_id=run_id, digest=digest, is_key=is_key))
                answered: Answer = await answer
            return answered
        # A link that was cut without a word: SSH's keepalives find it later than this.
        except TimeoutError:
            raise ControllerAway from None
        finally:
            del self._questions[number]

    async def _first_link(self) -> None:
        """Wait for the controller, soon after the start. Raises ControllerAway."""
        left = self._began + FIRST_LINK_SECONDS - asyncio.get_running_loop().time()
        if self._is_linked.is_set() or left <= 0:
            raise ControllerAway
        try:
            async with asyncio.timeout(left):
                await self._is_linked.wait()
        except TimeoutError:
            raise ControllerAway from None

    async def serve(self, request: web.Request, served: Served) -> web.StreamResponse:
        """Serve one connection of the controller, until it is gone or another one comes."""
        websocket = web.WebSocketResponse(max_msg_size=_MAX_MESSAGE, heartbeat=10.0)
        await websocket.prepare(request)
        # A controller that came back may have left a connection whose end nobody has told yet.
        before, self._websocket = self._websocket, websocket
        if before is not None:
            await before.close()
        counting = asyncio.create_task(self._count(served), name="counts")
        try:
            await self._send(served.hello())
            self._is_linked.set()
            async for message in websocket:
                if message.type is not WSMsgType.TEXT:
                    break
                try:
                    heard = _decode.decode(message.data)
                except msgspec.ValidationError:
                    continue  # of a newer controller
                await self._heard(heard, served)
        finally:
            counting.cancel()
            # A newer connection has taken its place, and its questions are not lost.
            if self._websocket is websocket:
                self._websocket = None
                self._lose_questions()
        return websocket

    async def close(self) -> None:
        if self._websocket is not None:
            await self._websocket.close()

    async def _heard(self, message: FromController, served: Served) -> None:
        match message:
            case Snapshot():
                await self._send(await served.apply(message))
                await self._send(served.in_flight())
                await self._send(served.reached())
                await self._send(served.certificates())
            case Claim():
                error = served.claim(message.host, message.seconds)
                await self._send(Claimed(id=message.id, error=error))
            case Answer():
                asked = self._questions.get(message.id)
                # An asker that has waited long enough has cancelled it.
                if asked is not None and not asked.done():
                    asked.set_result(message)
            case Revoked():
                served.revoke(message.digest)

    async def _count(self, served: Served) -> None:
        while True:
            await asyncio.sleep(COUNT_SECONDS)
            await self._send(served.take_counts())
            await self._send(served.in_flight())

    async def _send(self, message: FromAgent) -> None:
        websocket = self._websocket
        if websocket is not None:
            # The controller can close the WebSocket before the message is sent.
            with contextlib.suppress(ConnectionError, RuntimeError):
                await websocket.send_str(_encode(message).decode())

    def _lose_questions(self) -> None:
        for question in self._questions.values():
            # Answered or cancelled, and its task has not run since.
            if not question.done():
                question.set_exception(ControllerAway())
