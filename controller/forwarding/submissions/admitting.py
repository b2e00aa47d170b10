"""The leader's end: it takes the submissions that a follower gives it at once.

The follower's reading of a file counts. Its view of the state does not: the token is looked up
again, and all that depends on what is live is decided here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
from aiohttp import web

from common.refusals import Unauthenticated
from controller.api.app import unless_done
from controller.api.http.errors import as_response
from controller.api.http.holding import Lead
from controller.api.runs.runs import batch_answer, status_of, view_of
from controller.forwarding.follower_links import mark_of
from controller.forwarding.submissions.messages import (
    CONTENT,
    READING,
    Answer,
    Answers,
    Asked,
    Message,
    Reading,
)
from controller.service import ControllerService
from controller.service.runs.submission_stages import Planned, Submission, Submitted
from controller.store.base import Commits
from controller.store.errors import LeaseLost, StoreUnavailable
from fairlead.configuration.runs.plan import Plan

log = logging.getLogger(__name__)

_MAX_KNOWN = 32
_MAX_KNOWN_BYTES = 64 << 10
"""A larger plan is read each time."""
_BY_ITSELF = Answer(status=0)
_message = msgspec.msgpack.Decoder(Message).decode
_plan = msgspec.msgpack.Decoder(Plan).decode
_encoded = msgspec.msgpack.Encoder().encode


class Admitting:
    """`lead`: None: this controller always leads. `reading`: see `Reading`."""

    def __init__(self, service: ControllerService, lead: Lead | None, reading: Reading) -> None:
        self._service = service
        self._lead = lead
        self._reading = reading
        self._plans: dict[bytes, Plan] = {}

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a follower. Raises StoreError: nothing was done."""
        if request.headers.get(READING) != await self._reading.digest():
            raise web.HTTPConflict
        message = _message(await request.read())
        asked: list[list[Planned]] = []
        answers: list[Answer | None] = []
        for one in message.asked:
            try:
                asked.append(self._planned(one, message.plans))
                answers.append(None)
            except Unauthenticated as error:
                answers.append(self._refused(request, error))
            # A plan that only its own file can be blamed for keeps none of the others waiting.
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                log.error("a follower's plan can't be read: %s", error)
                answers.append(_BY_ITSELF)
        results = iter(await self._service.runs.submissions.submit_planned(asked))
        whole = [
            self._result(request, one, next(results)) if answer is None else answer
            for one, answer in zip(message.asked, answers, strict=True)
        ]
        body = _encoded(Answers(answers=tuple(whole)))
        return web.Response(body=body, content_type=CONTENT)

    def _planned(self, asked: Asked, encoded: Sequence[bytes]) -> list[Planned]:
        """`encoded`: the plans of the message. Raises Unauthenticated, and what decoding raises."""
        gate = self._service.accounts.gate
        user = gate.users[gate.token_with_id(asked.token).user]
        numbers = {one.plan for one in asked.submissions}
        plans = {number: self._plan_of(encoded[number]) for number in numbers}
        return [
            Planned(
                submission=Submission(
                    configuration=plans[one.plan].configuration,
                    name=one.name,
                    client_key=one.client_key,
                    if_exists=one.if_exists,
                    parent=one.parent,
                ),
                plan=plans[one.plan],
                user=user,
            )
            for one in asked.submissions
        ]

    def _result(
        self, request: web.Request, asked: Asked, found: list[Submitted | Exception] | None
    ) -> Answer:
        if found is None:
            return _BY_ITSELF
        if asked.is_batch:
            return Answer(status=200, body=msgspec.json.encode(batch_answer(found)))
        (one,) = found
        if isinstance(one, Exception):
            return self._refused(request, one)
        try:
            body = msgspec.json.encode(view_of(self._service, one.state))
        # It is no reason to tell the others nothing.
        except Exception as error:
            return self._refused(request, error)
        return Answer(status=status_of(one), body=body)

    def _refused(self, request: web.Request, error: Exception) -> Answer:
        answer = None
        # Of this run alone: what became of the others says nothing about it.
        if self._lead is not None and isinstance(error, LeaseLost | StoreUnavailable):
            answer = unless_done(error, self._lead, Commits())
        answer = as_response(request, error) if answer is None else answer
        body = answer.body
        assert isinstance(body, bytes)
        headers = tuple(
            (str(name), value) for name, value in answer.headers.items() if name != "Content-Length"
        )
        return Answer(status=answer.status, body=body, headers=headers, mark=mark_of(answer))

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
