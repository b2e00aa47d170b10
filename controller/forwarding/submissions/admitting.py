"""The leader's end: it takes the submissions that a follower gives it at once.

The follower's reading of a file counts. Its view of the state does not: the token is looked up
again, and all that depends on what is live is decided here. A request that waits for more than
memory and database is done by itself, and answered when it is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import msgspec
from aiohttp import web

from common.refusals import Unauthenticated
from controller.api.app import unless_done
from controller.api.http.errors import as_response, not_known_to_be_done
from controller.api.http.holding import Changing, Lead, LeaseEnds
from controller.api.runs.runs import SubmittedTogether, batch_answer, status_of, view_of
from controller.forwarding.follower_links import mark_of
from controller.forwarding.submissions.messages import (
    CONTENT,
    READING,
    Answer,
    Asked,
    Message,
    Reading,
    piece,
)
from controller.service import ControllerService
from controller.service.runs.shared_turns import LateRequests, Meet, Part, SharedTurn, at_once
from controller.service.runs.submission_stages import Form, Request, Submission, Submitted
from controller.store.base import Commits
from controller.store.errors import LeaseLost, StoreUnavailable
from fairlead.configuration.runs.plan import Plan

log = logging.getLogger(__name__)

_MAX_KNOWN = 32
_MAX_KNOWN_BYTES = 64 << 10
"""A larger plan is read each time."""
_BY_ITSELF = Answer(status=0)
_TOGETHER_STATUS = 201
_message = msgspec.msgpack.Decoder(Message).decode
_plan = msgspec.msgpack.Decoder(Plan).decode
T = TypeVar("T")
Numbered: TypeAlias = Mapping[int, Request]
"""Requests by their numbers in the message."""
Answering: TypeAlias = Callable[[Meet], Awaitable[dict[int, Answer]]]


class Admitting:
    """`lead`: None: this controller always leads. `reading`: see `Reading`."""

    def __init__(self, service: ControllerService, lead: Lead | None, reading: Reading) -> None:
        self._service = service
        self._lead = lead
        self._changing = None if lead is None else Changing(lead)
        self._reading = reading
        self._plans: dict[bytes, Plan] = {}
        self._late = LateRequests()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a follower. Raises StoreError: nothing was done."""
        if request.headers.get(READING) != await self._reading.digest():
            raise web.HTTPConflict
        message = _message(await request.read())
        quick: dict[int, Request] = {}
        waiting: dict[int, Request] = {}
        answers: dict[int, Answer] = {}
        for number, one in enumerate(message.asked):
            try:
                asked = self._asked(one, message.plans)
            except Unauthenticated as error:
                answers[number] = self._refused(request, error)
            # A plan that only its own file can be blamed for keeps none of the others waiting.
            except Exception as error:
                log.error("what a follower gives can't be read: %r", error)
                answers[number] = _BY_ITSELF
            else:
                waits = self._service.runs.submissions.waits_for_more(asked)
                (waiting if waits else quick)[number] = asked
        if waiting:
            return await self._in_pieces(request, answers, quick, waiting)
        answers.update(await self._admitted(request, quick, at_once))
        return web.Response(body=piece(answers), content_type=CONTENT)

    async def _in_pieces(
        self,
        request: web.Request,
        answers: Mapping[int, Answer],
        quick: Numbered,
        waiting: Numbered,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": CONTENT})
        # From here on, no other answer can be given to the message as a whole.
        await response.prepare(request)
        turn = SharedTurn(len(waiting) + bool(quick))
        answering = [
            self._counted(partial(self._by_itself, request, number, one), turn.part())
            for number, one in waiting.items()
        ]
        if quick:
            answering.append(self._counted(partial(self._all_of, request, quick), turn.part()))
        tasks = {asyncio.create_task(one) for one in answering}
        try:
            await _write(response, answers)
            pending = set(tasks)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                found: dict[int, Answer] = {}
                for one in done:
                    # One that was cut off is no reason to tell the others nothing.
                    if not one.cancelled():
                        found.update(one.result())
                await _write(response, found)
            with contextlib.suppress(ConnectionError):
                await response.write_eof()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return response

    @staticmethod
    async def _counted(answer: Answering, part: Part) -> dict[int, Answer]:
        try:
            return await answer(part.meet)
        finally:
            part.leave()

    async def _all_of(self, request: web.Request, quick: Numbered, meet: Meet) -> dict[int, Answer]:
        """Return an answer to each of these, whatever becomes of all."""
        stored = Commits.counted()
        try:
            return await self._within_the_lease(self._admitted(request, quick, meet))
        except LeaseEnds:
            return dict.fromkeys(quick, _answer_of(not_known_to_be_done()))
        except Exception as error:
            return dict.fromkeys(quick, self._refused(request, error, stored))

    async def _by_itself(
        self, request: web.Request, number: int, asked: Request, meet: Meet
    ) -> dict[int, Answer]:
        stored = Commits.counted()
        try:
            with self._late.place():
                return {number: await self._within_the_lease(self._done(request, asked, meet))}
        except LeaseEnds:
            return {number: _answer_of(not_known_to_be_done())}
        # Whatever it is, the others of the message are waited for.
        except Exception as error:
            return {number: self._refused(request, error, stored)}

    async def _within_the_lease(self, change: Coroutine[None, None, T]) -> T:
        """Raises LeaseEnds, as for a request of its own."""
        if self._changing is None:
            return await change
        return await self._changing.outcome(change, lambda: True)

    async def _admitted(
        self, request: web.Request, quick: Numbered, meet: Meet
    ) -> dict[int, Answer]:
        submissions = self._service.runs.submissions
        results = await submissions.submit_planned(list(quick.values()), meet)
        return {
            number: self._result(request, asked, found)
            for (number, asked), found in zip(quick.items(), results, strict=True)
        }

    async def _done(self, request: web.Request, asked: Request, meet: Meet) -> Answer:
        """Raises what `submit` does."""
        submissions, user, given = self._service.runs.submissions, asked.user, asked.submissions
        if asked.form is Form.TOGETHER:
            states = await submissions.submit_together(given, user=user, meet=meet)
            runs = tuple(view_of(self._service, state) for state in states)
            body = msgspec.json.encode(SubmittedTogether(runs=runs))
            return Answer(status=_TOGETHER_STATUS, body=body)
        if asked.form is Form.SEVERAL:
            found = await submissions.submit_all(given, user=user, meet=meet)
        else:
            found = [await submissions.submit(given[0], user=user, meet=meet)]
        return self._result(request, asked, found)

    def _asked(self, asked: Asked, encoded: Sequence[bytes]) -> Request:
        """`encoded`: the plans of the message. Raises Unauthenticated, and what decoding raises."""
        gate = self._service.accounts.gate
        user = gate.users[gate.token_with_id(asked.token).user]
        numbers = {one.plan for one in asked.submissions}
        plans = {number: self._plan_of(encoded[number]) for number in numbers}
        submissions = tuple(
            Submission(
                configuration=plans[one.plan].configuration,
                plan=plans[one.plan],
                name=one.name,
                client_key=one.client_key,
                if_exists=one.if_exists,
                parent=one.parent,
            )
            for one in asked.submissions
        )
        return Request(user=user, submissions=submissions, form=asked.form)

    def _result(
        self, request: web.Request, asked: Request, found: list[Submitted | Exception] | None
    ) -> Answer:
        if found is None:
            return _BY_ITSELF
        try:
            if asked.form is Form.SEVERAL:
                return Answer(status=200, body=msgspec.json.encode(batch_answer(found)))
            (one,) = found
            if isinstance(one, Exception):
                return self._refused(request, one)
            body = msgspec.json.encode(view_of(self._service, one.state))
        # It is no reason to tell the others nothing.
        except Exception as error:
            return self._refused(request, error)
        return Answer(status=status_of(one), body=body)

    def _refused(
        self, request: web.Request, error: Exception, stored: Commits | None = None
    ) -> Answer:
        """`stored`: on behalf of this request; None: nothing was, whatever became of the others of
        the message."""
        answer = None
        if self._lead is not None and isinstance(error, LeaseLost | StoreUnavailable):
            answer = unless_done(error, self._lead, stored or Commits())
        return _answer_of(as_response(request, error) if answer is None else answer)

    def _plan_of(self, data: bytes) -> Plan:
        if len(data) > _MAX_KNOWN_BYTES:
            return _plan(data)
        plan = self._plans.pop(data, None)
        if plan is None:
            plan = _plan(data)
        self._plans[data] = plan
        if len(self._plans) > _MAX_KNOWN:
            del self._plans[next(iter(self._plans))]
        return plan


def _answer_of(answer: web.Response) -> Answer:
    # One for a follower that is gone has no body.
    body = answer.body if isinstance(answer.body, bytes) else b""
    headers = tuple(
        (str(name), value) for name, value in answer.headers.items() if name != "Content-Length"
    )
    return Answer(status=answer.status, body=body, headers=headers, mark=mark_of(answer))


async def _write(response: web.StreamResponse, answers: Mapping[int, Answer]) -> None:
    if answers:
        # A follower that is gone changes nothing of what was begun.
        with contextlib.suppress(ConnectionError):
            await response.write(piece(answers))
