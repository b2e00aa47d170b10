"""Answers submissions at a follower: by itself, by the leader with others, or as they came."""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import web

from common.proxy.forwarding import HangUps
from common.proxy.upstream import UpstreamError
from common.refusals import ServiceError
from controller.api.http.errors import as_response, nobody_leads
from controller.api.http.routes import JSON
from controller.forwarding.follower_links import HELD, NOT_DONE, PERHAPS_DONE
from controller.forwarding.forwarder import (
    AGAIN_SECONDS,
    HELD_SECONDS_HEADER,
    WORTH_TELLING,
    Forwarder,
    cut,
    whole_or_streamed,
)
from controller.forwarding.leader_links import LeaderLinks, NobodyLeads, NoLink
from controller.forwarding.submissions.batches import (
    Answered,
    Batches,
    PassOn,
    SendAgain,
    Waiting,
)
from controller.forwarding.submissions.messages import Answer
from controller.forwarding.submissions.readings import FORMS, Read, Readings
from controller.replica.alone import NeedsLeader
from controller.store.errors import StoreError
from fairlead.configuration.convert import ConfigurationError

PATHS = tuple(FORMS)


class Submissions:
    """`forwarder`: passes on what is not read here."""

    def __init__(self, forwarder: Forwarder, links: LeaderLinks, readings: Readings) -> None:
        self._forwarder = forwarder
        self._readings = readings
        self._batches = Batches(links, readings.reading.digest)
        self._hang_ups = HangUps()

    async def close(self) -> None:
        await self._batches.close()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one of PATHS."""
        read = await self._read(request) if self._may_be_read(request) else None
        if isinstance(read, web.StreamResponse):
            return read
        if read is not None:
            with contextlib.suppress(PassOn):
                return await self._given(request, read)
        return await self._forwarder.forward(request)

    def _may_be_read(self, request: web.Request) -> bool:
        """Return whether it is a plain request for a leader that takes what is read here."""
        is_plain = request.raw_path in PATHS and request.body_exists
        is_encoded = "Content-Encoding" in request.headers
        return is_plain and not is_encoded and self._batches.is_understood() is not False

    async def _read(self, request: web.Request) -> Read | web.StreamResponse | None:
        """Return what the leader is to be given, or a refusal; None: it is passed on as it came."""
        body = await whole_or_streamed(request)
        if isinstance(body, web.Response):
            return body
        if body.data is None:
            return None
        try:
            return await self._readings.read(request, body.data)
        except (NeedsLeader, StoreError):
            return None
        except (ServiceError, ConfigurationError) as error:
            # A leader of another version may take it, or have other words.
            return as_response(request, error) if self._batches.is_understood() else None

    async def _given(self, request: web.Request, read: Read) -> web.StreamResponse:
        """Return the leader's answer. Raises PassOn."""
        seconds, now = self._forwarder.hold_seconds, asyncio.get_running_loop().time
        until, held = (began := now()) + seconds, 0.0
        room, size = self._forwarder.room, read.size
        with self._hang_ups.watched(request):
            while True:
                waiting = Waiting(read, until)
                try:
                    answered = await self._batches.answer_to(waiting, room, size)
                    if not await self._is_for_the_next(answered, read, until, size):
                        return self._answer(answered.answer, held + waiting.held)
                except SendAgain:
                    pass
                except (NobodyLeads, NoLink):
                    refused = nobody_leads()
                    # The next connection may be carried in another way.
                    refused.force_close()
                    return refused
                except UpstreamError:
                    return cut(request)
                held += waiting.held
                # From the beginning: it ends although leaders take turns.
                until = began + seconds + AGAIN_SECONDS

    async def _is_for_the_next(
        self, answered: Answered, read: Read, until: float, size: int
    ) -> bool:
        """Return whether the next leader is to do it: see `Forwarder`."""
        mark = answered.answer.mark
        if mark == PERHAPS_DONE and read.is_keyed:
            return await self._forwarder.has_next(answered.over, until, size)
        return mark == NOT_DONE or (mark == HELD and answered.over.is_set())

    def _answer(self, answer: Answer, held: float) -> web.StreamResponse:
        response = web.Response(
            status=answer.status,
            body=answer.body,
            headers=dict(answer.headers) or {"Content-Type": JSON},
        )
        if held >= WORTH_TELLING:
            response.headers[HELD_SECONDS_HEADER] = f"{held:.1f}"
        if self._forwarder.is_leading:
            response.force_close()
        return response
