"""A follower that gives the leader the submissions of several users at once, and what the leader
makes of a message: as `forwarding.submissions` has it, without HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Protocol, TypeAlias

from common.refusals import ServiceError
from controller.service.runs.shared_turns import Meet, Part, SharedTurn, at_once
from controller.service.runs.submission_stages import Form, Request, Submitted
from controller.service.runs.submissions import SubmissionService
from controller.store.errors import StoreError
from tests.simulation.checks import Checks

SLOW_SECONDS = 0.1
"""A message that takes longer keeps the next one waiting no more."""
Results: TypeAlias = list[Submitted | Exception]
Ask = Callable[[SubmissionService], Awaitable[None]]


class Counter(Protocol):
    """Where submissions are received."""

    checks: Checks

    async def submit(self, ask: Ask) -> None:
        """Let the controller that leads do this; return in any case."""

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]: ...


async def done_alone(
    service: SubmissionService, request: Request, meet: Meet = at_once
) -> Results | None:
    """Return what comes of one request; None: it had no answer."""
    given, user = request.submissions, request.user
    try:
        if request.form is Form.TOGETHER:
            states = await service.submit_together(given, user=user, meet=meet)
            return [Submitted(state=state) for state in states]
        if request.form is Form.SEVERAL:
            return await service.submit_all(given, user=user, meet=meet)
        return [await service.submit(given[0], user=user, meet=meet)]
    except ServiceError as error:
        return [error]
    except StoreError:
        return None


class Waiting:
    """A request at the follower. `answered`: what came of it; None: there was no answer."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.answered: asyncio.Future[Results | None] = asyncio.get_running_loop().create_future()

    def answer(self, found: Results | None) -> None:
        if not self.answered.done():
            self.answered.set_result(found)


class Messages:
    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._waiting: list[Waiting] = []
        self._is_on_the_way = False

    async def submit(self, request: Request) -> Results | None:
        """Return what the leader says; None: there was no answer."""
        waiting = Waiting(request)
        self._waiting.append(waiting)
        self._send()
        return await waiting.answered

    def _send(self) -> None:
        if self._waiting and not self._is_on_the_way:
            self._is_on_the_way = True
            batch, self._waiting = self._waiting, []
            self._counter.spawn(self._carry(batch))

    async def _carry(self, batch: Sequence[Waiting]) -> None:
        passed_on: list[Waiting] = []

        async def ask(service: SubmissionService) -> None:
            await _answer_all(service, batch, passed_on)

        asking = self._counter.spawn(self._counter.submit(ask))
        await asyncio.wait((asking,), timeout=SLOW_SECONDS)
        self._is_on_the_way = False
        self._send()
        await asking
        for one in batch:
            if one in passed_on:
                self._counter.spawn(self._pass_on(one))
            else:
                one.answer(None)

    async def _pass_on(self, waiting: Waiting) -> None:
        async def ask(service: SubmissionService) -> None:
            waiting.answer(await done_alone(service, waiting.request))

        await self._counter.submit(ask)
        waiting.answer(None)


async def _answer_all(
    service: SubmissionService, batch: Sequence[Waiting], passed_on: list[Waiting]
) -> None:
    """Answer each when it is done. `passed_on` gets those that are to be done by themselves."""
    slow = [one for one in batch if service.waits_for_more(one.request)]
    quick = [one for one in batch if one not in slow]
    turn = SharedTurn(len(slow) + bool(quick))
    work = [_answer_alone(service, one, turn.part()) for one in slow]
    if quick:
        work.append(_answer_together(service, quick, passed_on, turn.part()))
    await asyncio.gather(*work)


async def _answer_alone(service: SubmissionService, one: Waiting, part: Part) -> None:
    try:
        one.answer(await done_alone(service, one.request, part.meet))
    finally:
        part.leave()


async def _answer_together(
    service: SubmissionService, quick: Sequence[Waiting], passed_on: list[Waiting], part: Part
) -> None:
    try:
        found = await service.submit_planned([one.request for one in quick], part.meet)
    except StoreError:
        return
    finally:
        part.leave()
    for one, results in zip(quick, found, strict=True):
        if results is None:
            passed_on.append(one)
        else:
            one.answer(results)
