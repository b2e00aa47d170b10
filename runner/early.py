"""What a runner does before the larger part of it is loaded: start a job at once, and give the
first that it says.

Whoever loads that part calls `turn` between its pieces. Of the API (`app`) this knows two requests,
and only where nothing goes wrong: `POST /v1/start` of a simple job, and `GET /v1/logs` from the
beginning. Everything else waits, untouched, and is left with its sockets and the job, which has a
`HeadStart` then.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import suppress
from typing import NamedTuple

import msgspec

from runner import head_start, plain_http
from runner.errors import CannotStart, Refused
from runner.head_start import HeadStart
from runner.job.spawning import Children
from runner.logs.segments import next_page
from runner.options import Options
from runner.plain_http import NotPlain, Request
from runner.schemas import SubmitRequest
from runner.sockets import is_welcome
from runner.validation import check_submission

FIRST_WORDS = 0.015
"""Seconds that a job just started is listened to before loading goes on."""
_FIRST_PAGE = 64 << 10
"""Bytes: what a socket takes at once. The job waits for the rest as soon as its pipe is full."""

_JSON = {"Content-Type": "application/json"}
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Left(NamedTuple):
    """`visitors`: connections whose next request was not read."""

    listener: socket.socket
    visitors: list[socket.socket]
    head_start: HeadStart | None


class Early:
    """`turn` any number of times, then `leave`, once. `ask_to_stop` may interrupt anything."""

    def __init__(self, listener: socket.socket, options: Options, children: Children) -> None:
        self.stop_asked = False
        self._listener = listener
        self._options = options
        self._children = children
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._visitors: dict[int, socket.socket] = {}
        self._readers: dict[int, Request] = {}
        """Who waits for the first that the job says."""
        self._head_start: HeadStart | None = None

    def turn(self) -> None:
        """Answers what can be answered now."""
        had_begun = self._head_start is not None
        while self._look(0):
            continue
        if self._head_start is not None and not had_begun:
            self._hear_first_words(self._head_start)

    def leave(self) -> Left:
        return Left(self._listener, list(self._visitors.values()), self._head_start)

    def ask_to_stop(self, *_: object) -> None:
        """A signal's handler; for who comes after us."""
        self.stop_asked = True

    def _hear_first_words(self, job: HeadStart) -> None:
        until = time.monotonic() + FIRST_WORDS
        while not job.log.end and (left := until - time.monotonic()) > 0 and self._look(left):
            continue

    def _look(self, seconds: float) -> bool:
        """Waits at most so long; whether there was anything to do."""
        done = [self._attend(fd) for fd, _ in self._poll.poll(seconds * 1000)]
        self._give_first_page()
        return any(done)

    def _attend(self, fd: int) -> bool:
        if fd == self._listener.fileno():
            return self._accept()
        if fd in self._visitors:
            return self._serve(fd)
        return self._listen_to_the_job(fd)

    def _accept(self) -> bool:
        try:
            visitor, _ = self._listener.accept()
        except OSError:
            return False
        if is_welcome(visitor, self._options.peers):
            self._visitors[visitor.fileno()] = visitor
            self._poll.register(visitor, select.POLLIN)
        else:
            visitor.close()
        return True

    def _serve(self, fd: int) -> bool:
        try:
            request = plain_http.peek(self._visitors[fd])
        except NotPlain:
            self._poll.unregister(fd)
            return True
        if request is None:
            return False
        if _waits_for_the_first(request):
            self._poll.unregister(fd)
            self._readers[fd] = request
        elif not (_is_start(request) and self._start(fd, request)):
            self._poll.unregister(fd)
        return True

    def _start(self, fd: int, request: Request) -> bool:
        """False when it is for the whole runner to do, or to say what is wrong."""
        try:
            submitted = msgspec.json.decode(request.body, type=SubmitRequest)
            check_submission(submitted)
            task = self._options.task
            if self._head_start is not None or not head_start.may_begin(task, submitted):
                return False
            job = head_start.begin(task, submitted, self._options.settings, self._children)
        except (*_MALFORMED, Refused, CannotStart, OSError):
            return False
        self._head_start = job
        job.output.before_close = self._look_away
        for pipe in job.output.open:
            self._poll.register(pipe, select.POLLIN)
        self._answer(fd, request, msgspec.json.encode(job.status.latest), _JSON)
        return True

    def _listen_to_the_job(self, pipe: int) -> bool:
        job = self._head_start
        assert job is not None
        if job.log.end >= _FIRST_PAGE:
            self._look_away(pipe)
        else:
            job.output.take(pipe)
        return True

    def _look_away(self, pipe: int) -> None:
        with suppress(KeyError):
            self._poll.unregister(pipe)

    def _give_first_page(self) -> None:
        if self._head_start is None or not self._head_start.log.end:
            return
        for fd, request in self._readers.items():
            reader = self._head_start.log.reader(0)
            try:
                page = next_page(reader, _FIRST_PAGE)
            finally:
                reader.close()
            self._poll.register(fd, select.POLLIN)
            self._answer(fd, request, page.frames, page.headers)
        self._readers.clear()

    def _answer(self, fd: int, request: Request, body: bytes, headers: dict[str, str]) -> None:
        if not plain_http.answer(self._visitors[fd], request, body, headers):
            self._poll.unregister(fd)
            self._visitors.pop(fd).close()


def _is_start(request: Request) -> bool:
    return (request.method, request.path) == ("POST", "/v1/start")


def _waits_for_the_first(request: Request) -> bool:
    if (request.method, request.path) != ("GET", "/v1/logs") or request.body:
        return False
    wait = request.query.get("wait", "")
    whole = wait.isascii() and wait.isdecimal() and int(wait) > 0
    return whole and request.query == {"offset": "0", "wait": wait}
