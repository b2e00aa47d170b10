"""Gives the leader the submissions of many clients at once, and each client its answer.

The first goes at once. While it is on its way, those that come are gathered, and go together.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from common.proxy.headers import CLIENT, head_of
from common.proxy.upstream import BadAnswer, NoAnswer, ResponseHead, UpstreamError
from controller.api.http.holding import Room, held_size
from controller.forwarding.follower_links import (
    BY_ITSELF,
    HELD,
    NOT_DONE,
    PERHAPS_DONE,
    SUBMISSIONS_PATH,
)
from controller.forwarding.leader_links import LeaderLinks, Link, NobodyLeads
from controller.forwarding.submissions.messages import (
    CONTENT,
    READING,
    Answer,
    Asked,
    Message,
    Pieces,
)
from controller.forwarding.submissions.readings import Read
from controller.relay import Leader

MAX_RUNS = 256
MAX_BYTES = 1 << 20
"""Of one message."""
MAX_ON_THE_WAY = 1
"""Messages at once; those that come meanwhile are gathered. With two, a run costs the leader as
much: 1.14, 0.80, 0.58 and 0.53 ms over 16 to 128 connections, instead of 1.22, 0.84, 0.60 and
0.50."""
SLOW_SECONDS = 0.1
"""One that takes longer keeps the next ones waiting no more."""
_MARKS = {name.lower(): name for name in (NOT_DONE, HELD, PERHAPS_DONE)}
_UNKNOWN = (404, 409)
"""The leader is of another version, or of other defaults."""
_FOR_CLIENTS = frozenset(("content-type", "retry-after"))
_TIMER_SECONDS = 0.05
"""A timer may fire a little early."""
_PASS_ON = Answer(status=0)
_encoded = msgspec.msgpack.Encoder().encode


class PassOn(Exception):
    """Nothing was done of the request: it is to be passed on as it came."""


class SendAgain(Exception):
    """No answer came, and the request may be done twice: it is one for the next leader."""


class Answered(msgspec.Struct, frozen=True):
    """`over`: set when the leader that has answered leads no more."""

    answer: Answer
    over: asyncio.Event


class Waiting:
    """A request that waits to be sent, until this time of the loop's clock; then for its answer.
    `held`: seconds for which it has waited for a leader."""

    def __init__(self, read: Read, until: float) -> None:
        loop = asyncio.get_running_loop()
        self.read = read
        self.until = until
        self.since = loop.time()
        self.held = 0.0
        self.sent: asyncio.Future[None] = loop.create_future()
        self.answered: asyncio.Future[Answered] = loop.create_future()

    def fail(self, error: Exception) -> None:
        """Say that it was not sent, or what came instead of an answer."""
        # Its client may have left.
        future = self.answered if self.sent.done() else self.sent
        if not future.done():
            future.set_exception(error)

    def leave(self) -> None:
        """Say that its client has the answer, or is gone: then it is not sent any more."""
        for future in (self.sent, self.answered):
            # asyncio logs an error that nothing retrieves.
            if not future.cancel() and not future.cancelled():
                future.exception()

    def expire(self) -> None:
        """Say that it was not sent in time."""
        if not self.sent.done():
            self.sent.set_exception(NobodyLeads())

    def answer(self, answered: Answered) -> None:
        if not self.answered.done():
            self.answered.set_result(answered)


class Batches:
    """`reading`: see `Reading.digest`."""

    def __init__(self, links: LeaderLinks, reading: Callable[[], Awaitable[str]]) -> None:
        self._links = links
        self._reading = reading
        self._queue: deque[Waiting] = deque()
        self._on_the_way = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._understood: tuple[Leader, bool] | None = None
        self._is_closed = False

    def is_understood(self) -> bool | None:
        """Return whether the present leader takes submissions in this way; None: it was not asked
        yet."""
        leader = self._links.leader
        if leader is None or self._understood is None or self._understood[0] != leader:
            return None
        return self._understood[1]

    async def answer_to(self, waiting: Waiting, room: Room, size: int) -> Answered:
        """Return the leader's answer. `size`: its bytes, for which there may be no room. Raises
        NobodyLeads, NoLink, PassOn, SendAgain, and UpstreamError: nobody knows whether it was
        done."""
        timer = None
        try:
            # All of it is here, also a plan that is larger than its file.
            with room.place(held_size(0) + size) as has_place:
                self._queue.append(waiting)
                self._send()
                # Without a place it goes at once, or not at all.
                until = waiting.until if has_place else waiting.since
                timer = asyncio.get_running_loop().call_at(until, waiting.expire)
                await waiting.sent
            return await waiting.answered
        finally:
            if timer is not None:
                timer.cancel()
            waiting.leave()

    async def close(self) -> None:
        self._is_closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _send(self) -> None:
        while self._queue and self._on_the_way < MAX_ON_THE_WAY and not self._is_closed:
            self._on_the_way += 1
            task = asyncio.create_task(self._carry())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self) -> None:
        """Carry one message. Those that come until there is a connection go with it."""
        with self._counted() as counts_no_more:
            began = asyncio.get_running_loop().time()
            link = await self._link()
            batch = [] if link is None else self._taken(began)
            if link is None or not batch:
                return
            slow = asyncio.get_running_loop().call_later(SLOW_SECONDS, counts_no_more)
            try:
                await self._exchange(link, batch, counts_no_more)
            finally:
                slow.cancel()

    @contextmanager
    def _counted(self) -> Iterator[Callable[[], None]]:
        """Let the next message go at the end of the block, or when the value is called."""
        ended = False

        def counts_no_more() -> None:
            nonlocal ended
            if not ended:
                ended = True
                self._on_the_way -= 1
                self._send()

        try:
            yield counts_no_more
        finally:
            counts_no_more()

    async def _link(self) -> Link | None:
        """Return a connection to the leader; None: nobody waits for one any more."""
        now = asyncio.get_running_loop().time
        while waiting := [one for one in self._queue if not one.sent.done()]:
            until = max(one.until for one in waiting)
            try:
                return await self._links.get(max(until - now(), 0.0))
            except NobodyLeads as error:
                # This controller is being stopped, or their time is over.
                stops = now() < until - _TIMER_SECONDS
                self._refuse(error, math.inf if stops else until)
            # Whatever it is: those who wait would ask again without a pause.
            except Exception as error:
                self._refuse(error, math.inf)
        self._queue.clear()
        return None

    def _refuse(self, error: Exception, until: float) -> None:
        """Say to those who wait up to this time that there is no leader."""
        for one in tuple(self._queue):
            if one.until <= until:
                self._queue.remove(one)
                one.fail(error)

    def _taken(self, asked_at: float) -> list[Waiting]:
        """Take the requests of the next message, which are sent from now on. `asked_at`: when a
        connection was asked for, by the loop's clock."""
        now = asyncio.get_running_loop().time()
        batch: list[Waiting] = []
        runs = size = 0
        while self._queue:
            one = self._queue[0]
            if not one.sent.done():
                runs, size = runs + len(one.read.submissions), size + one.read.size
                if batch and (runs > MAX_RUNS or size > MAX_BYTES):
                    break
                one.sent.set_result(None)
                one.held = now - max(one.since, asked_at)
                batch.append(one)
            self._queue.popleft()
        return batch

    async def _exchange(
        self, link: Link, batch: Sequence[Waiting], goes_on: Callable[[], None]
    ) -> None:
        """Give each request its answer. `goes_on`: called when the next leader may have others."""
        asking = asyncio.create_task(self._ask(link, batch, goes_on))
        over = asyncio.create_task(link.over.wait())
        try:
            await asyncio.wait((asking, over), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                # Its successor answers sooner than a leader that is paused.
                goes_on()
                for one in batch:
                    if one.read.is_keyed:
                        one.fail(SendAgain())
                if all(one.answered.done() for one in batch):
                    raise NoAnswer("leads no more")
            await asking
        except Exception as error:
            link.connection.close()
            for one in batch:
                is_cut = isinstance(error, UpstreamError)
                one.fail(SendAgain() if is_cut and one.read.is_keyed else error)
        except BaseException:
            link.connection.close()
            for one in batch:
                one.fail(NoAnswer("this controller is stopping"))
            raise
        else:
            link.give_back()
        finally:
            for task in (asking, over):
                task.cancel()
            await asyncio.gather(asking, over, return_exceptions=True)

    async def _ask(self, link: Link, batch: Sequence[Waiting], goes_on: Callable[[], None]) -> None:
        """Send a message, and give each request its answer when it comes. Raises UpstreamError."""
        data = _encoded(_message_of([one.read for one in batch]))
        named = [
            ("Host", link.host),
            (CLIENT, BY_ITSELF),
            (READING, await self._reading()),
            ("Content-Type", CONTENT),
            ("Content-Length", str(len(data))),
        ]
        connection = link.connection
        await connection.send(head_of("POST", SUBMISSIONS_PATH, named) + data)
        head = await connection.answer("POST")
        if head.status != 200:
            self._answer_all(link, head, await _rest(link), batch)
            return
        self._understood = (link.leader, True)
        missing, pieces = set(range(len(batch))), Pieces()
        while part := await connection.read():
            try:
                for answers in pieces.whole(part):
                    self._answer(link, batch, answers, missing)
                    if missing:
                        # These wait for more than a turn.
                        goes_on()
            except msgspec.MsgspecError as error:
                raise BadAnswer("answered in another form") from error
        if missing or not pieces.is_between:
            raise BadAnswer("answered to another number of requests")

    def _answer_all(
        self, link: Link, head: ResponseHead, body: bytes, batch: Sequence[Waiting]
    ) -> None:
        """Give each request the answer to the message."""
        answer = _PASS_ON
        if head.status in _UNKNOWN:
            self._understood = (link.leader, False)
        else:
            answer = _answer_to_all(head, body)
        numbers = range(len(batch))
        self._answer(link, batch, dict.fromkeys(numbers, answer), set(numbers))

    def _answer(
        self,
        link: Link,
        batch: Sequence[Waiting],
        answers: Mapping[int, Answer],
        missing: set[int],
    ) -> None:
        """`missing`: the numbers of those without an answer. Raises BadAnswer."""
        if not answers.keys() <= missing:
            raise BadAnswer("answered to another number of requests")
        missing.difference_update(answers)
        for number, answer in answers.items():
            if answer.status:
                batch[number].answer(Answered(answer, link.over))
            else:
                batch[number].fail(PassOn())
        if any(one.mark == NOT_DONE for one in answers.values()):
            self._links.leave(link)


async def _rest(link: Link) -> bytes:
    """Raises UpstreamError."""
    parts = []
    while part := await link.connection.read():
        parts.append(part)
    return b"".join(parts)


def _message_of(reads: Sequence[Read]) -> Message:
    numbers: dict[bytes, int] = {}
    asked = []
    for read in reads:
        own = [numbers.setdefault(plan, len(numbers)) for plan in read.plans]
        asked.append(
            Asked(
                token=read.token,
                submissions=tuple(
                    msgspec.structs.replace(one, plan=own[one.plan]) for one in read.submissions
                ),
                form=read.form,
            )
        )
    return Message(plans=tuple(numbers), asked=tuple(asked))


def _answer_to_all(head: ResponseHead, body: bytes) -> Answer:
    """Return what each client is told: the leader could do nothing of the message."""
    headers = tuple(pair for pair in head.headers if pair[0].lower() in _FOR_CLIENTS)
    marks = [_MARKS[name.lower()] for name, _ in head.headers if name.lower() in _MARKS]
    return Answer(status=head.status, body=body, headers=headers, mark=marks[0] if marks else None)
