"""One request on its way: hold it for a sleeping service, choose a replica, pass the answer on.

A request goes to another replica only if nothing was sent to the first one, or if its method may be
repeated and no byte of an answer came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import msgspec
from aiohttp import web

from common.proxy import headers
from common.proxy.body import Body
from common.proxy.errors import LeftToAnother, NoneReached, NoReplica, ReplicaFailed, ReplicaTimeout
from common.proxy.replicas import Replicas, Unreachable
from common.proxy.tunnel import tunnel
from common.proxy.upstream import (
    NoAnswer,
    ReplicaConnection,
    ResponseHead,
    UpstreamError,
)
from common.proxy.view import Replica, Service, Services, Traffic
from common.refusals import NotFound, ServiceError

# The idempotent methods (RFC 9110, 9.2.2).
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
FROM_REPLICA: web.ResponseKey[frozenset[str]] = web.ResponseKey("from_replica", frozenset)
"""The names of the headers that a replica sent; a response without it is the proxy's own."""


class ProxyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the proxy, in seconds, bytes and requests."""

    answer_seconds: float = 300.0
    """From the end of a request to the head of its answer."""
    hold_seconds: float = 300.0
    """How long a request waits for a sleeping service."""
    reconnect_seconds: float = 30.0
    """How long a request waits for the nodes of a service whose replicas were ready. A controller
    that has just begun to lead a busy machine needs more than 10 s to reach them."""
    max_held: int = 100
    """Requests of one service that wait at once for its start."""
    max_reconnecting: int = 2048
    """Requests of one service that wait at once for its nodes: all that come meanwhile."""
    most_body: int = 1 << 30
    max_in_flight: int = 4096


class Forwarded(msgspec.Struct, kw_only=True):
    """A request that was admitted. `rest`: the path and query for the replica."""

    request: web.Request
    service: str
    run_id: str
    rest: str
    prefix: str
    """The path in front of those of the service; empty where the host name tells the service."""
    stripped: str
    """What of it the replica does not see."""
    own_origin: bool
    headers: list[tuple[str, str]]
    body: Body
    hosts: frozenset[str]
    is_upgrade: bool = False
    sending: asyncio.Task[None] | None = None

    @property
    def may_be_repeated(self) -> bool:
        return self.request.method in _REPEATABLE and self.body.can_be_sent


class _TryAnother(Exception):
    def __init__(self, failure: ServiceError) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _Outcome(msgspec.Struct):
    """The outcome of one try, as it is counted."""

    failed: bool = True
    is_stream: bool = False


class Forwarder:
    """Carries requests to replicas."""

    def __init__(
        self, services: Services, replicas: Replicas, traffic: Traffic, limits: ProxyLimits
    ) -> None:
        self._services = services
        self._replicas = replicas
        self._traffic = traffic
        self._limits = limits
        self._held: dict[str, int] = {}
        self._patience: set[asyncio.Timeout] = set()
        """Of the requests that are held."""
        self._is_leaving = False

    async def forward(self, call: Forwarded) -> web.StreamResponse:
        """Return the answer, sent already. Raises ServiceError before its first byte was sent.

        A replica that breaks off later breaks the connection to the client.
        """
        tried: set[str] = set()
        failure: ServiceError | None = None
        while True:
            service = await self._ready(call)
            replica = self._replicas.choose(service.replicas, tried)
            if replica is None:
                raise failure or NoReplica(f"the service {call.service} has no replica now")
            with self._replicas.using(replica), self._counted(service, replica) as outcome:
                try:
                    return await self._exchange(call, service, replica, outcome)
                except _TryAnother as another:
                    failure = another.failure
                    tried.add(replica.id)
                finally:
                    await _end(call)

    def leave(self) -> None:
        """End the waits for replicas, because this controller ends. Nothing was done of what
        waits."""
        self._is_leaving = True
        for patience in self._patience:
            if not patience.expired():
                patience.reschedule(0.0)

    # -- sleeping services ---------------------------------------------------------------------

    async def _ready(self, call: Forwarded) -> Service:
        """Return the service once it has a replica. Raises NotFound, NoReplica."""
        service = self._service(call)
        if service.replicas:
            return service
        self._require_to_stay(call)
        if not (service.is_held or service.reconnects):
            raise NoReplica(
                f"no replica of the service {call.service} is ready; "
                f"`fairlead service show {call.service}` tells why"
            )
        limits = self._limits
        seconds, most, what = limits.reconnect_seconds, limits.max_reconnecting, "not reached yet"
        if service.is_held:
            seconds, most, what = limits.hold_seconds, limits.max_held, "starting"
        if self._held.get(call.run_id, 0) >= most:
            raise NoReplica(
                f"the service {call.service} is {what}, and {most} requests wait for it already; "
                "try again soon"
            )
        patience = asyncio.timeout(seconds)
        with self._counted_as_held(service):
            try:
                async with patience:
                    self._patience.add(patience)
                    while not service.replicas:
                        self._services.wake(call.run_id)
                        await self._services.changed(call.run_id)
                        service = self._service(call)
            except TimeoutError:
                self._require_to_stay(call)
                raise NoReplica(
                    f"no replica of the service {call.service} was ready within "
                    f"{seconds:g} s; `fairlead service show {call.service}` "
                    "tells why"
                ) from None
            finally:
                self._patience.discard(patience)
        return service

    def _require_to_stay(self, call: Forwarded) -> None:
        """Raises LeftToAnother."""
        if self._is_leaving:
            raise LeftToAnother(
                f"this controller is being stopped, and the request waited for {call.service}: "
                "try again, or at the address of another controller"
            )

    @contextmanager
    def _counted_as_held(self, service: Service) -> Iterator[None]:
        self._held[service.run_id] = self._held.get(service.run_id, 0) + 1
        counted = self._traffic.begin(service, None)
        try:
            yield
        finally:
            counted.end()
            self._held[service.run_id] -= 1
            if not self._held[service.run_id]:
                del self._held[service.run_id]

    def _service(self, call: Forwarded) -> Service:
        service = self._services.find(call.service)
        if service is None or service.run_id != call.run_id:
            raise NotFound(f"the service {call.service} has ended")
        return service

    # -- one try -------------------------------------------------------------------------------

    @contextmanager
    def _counted(self, service: Service, replica: Replica) -> Iterator[_Outcome]:
        outcome = _Outcome()
        counted = self._traffic.begin(service, replica)
        try:
            yield outcome
        except asyncio.CancelledError:
            outcome.failed = False  # the client went away
            raise
        finally:
            counted.end(failed=outcome.failed, is_stream=outcome.is_stream)

    async def _exchange(
        self, call: Forwarded, service: Service, replica: Replica, outcome: _Outcome
    ) -> web.StreamResponse:
        note = partial(self._note, service, replica)
        try:
            connection, head = await self._asked(call, replica)
        except (_TryAnother, ReplicaFailed, ReplicaTimeout):
            note(failed=True)
            raise
        note(failed=head.status >= 500)
        try:
            outcome.failed = head.status >= 500
            if head.status == 101:
                outcome.is_stream = True
                if not call.is_upgrade:
                    raise ReplicaFailed(_sentence(call, "switched protocols without being asked"))
                return await tunnel(call.request, _answered(call, head), connection.upgraded)
            return await self._pass_on(call, connection, head, outcome)
        finally:
            if _was_sent(call):
                self._replicas.give_back(replica, connection)
            else:
                connection.close()

    def _note(self, service: Service, replica: Replica, *, failed: bool) -> None:
        """Count an answer for the replica's ejection."""
        seconds = service.eject_for
        outliers = self._replicas.outliers
        is_out = outliers.note(replica.id, service.replicas, seconds, failed=failed)
        if is_out and seconds is not None:
            self._traffic.ejected(replica, seconds)

    async def _asked(
        self, call: Forwarded, replica: Replica
    ) -> tuple[ReplicaConnection, ResponseHead]:
        """Send the request; return the connection with the head of the answer. Raises _TryAnother,
        ReplicaFailed, ReplicaTimeout, TooLarge."""
        connection = self._replicas.kept(replica)
        while True:
            if connection is None:
                connection = await self._open(call, replica)
            is_fresh = not connection.served
            try:
                return connection, await self._ask(call, connection)
            except BaseException as error:
                # Also when it is cancelled: the rest of this answer would be taken for the next
                # one's.
                connection.close()
                connection = None
                if isinstance(error, TimeoutError):
                    raise ReplicaTimeout(
                        _sentence(call, f"gave no answer in {self._limits.answer_seconds:g} s")
                    ) from None
                if not isinstance(error, UpstreamError):
                    raise
                failure = ReplicaFailed(_sentence(call, str(error)))
                # The replica may have acted on the request: a second one would act again.
                if not isinstance(error, NoAnswer) or not call.may_be_repeated:
                    raise failure from error
                # A kept connection may have been closed by its server just now: the same replica
                # is tried again, on a new one.
                if is_fresh:
                    raise _TryAnother(NoneReached(failure.message)) from error

    async def _open(self, call: Forwarded, replica: Replica) -> ReplicaConnection:
        try:
            return await self._replicas.open(replica)
        except Unreachable as error:
            raise _TryAnother(
                NoneReached(f"no replica of the service {call.service} can be reached: {error}")
            ) from error

    async def _ask(self, call: Forwarded, connection: ReplicaConnection) -> ResponseHead:
        method = call.request.method
        head = headers.head_of(method, call.rest, (*call.headers, *call.body.headers))
        if call.body.data is not None:
            await connection.send(head + call.body.data)
            async with asyncio.timeout(self._limits.answer_seconds):
                return await connection.answer(method)
        await connection.send(head)
        call.sending = asyncio.create_task(call.body.stream(connection))
        answering = asyncio.create_task(connection.answer(method))
        try:
            await asyncio.wait((call.sending, answering), return_when=asyncio.FIRST_COMPLETED)
            if call.sending.done():
                error = call.sending.exception()
                if error is not None and not isinstance(error, UpstreamError):
                    raise error
                # A replica may refuse a body before its end, and close while it is still sent.
            # The time for an answer begins with the end of the upload, however long that one took.
            async with asyncio.timeout(self._limits.answer_seconds):
                return await asyncio.shield(answering)
        finally:
            answering.cancel()
            # asyncio would report an error that nobody retrieved.
            await asyncio.gather(answering, return_exceptions=True)

    async def _pass_on(
        self,
        call: Forwarded,
        connection: ReplicaConnection,
        head: ResponseHead,
        outcome: _Outcome,
    ) -> web.StreamResponse:
        response = _response(call, head)
        try:
            data = await self._begin(call, connection, response)
            while data:
                await response.write(data)
                data = await connection.read()
            await response.write_eof()
        except UpstreamError as error:
            outcome.failed = True
            if not response.prepared:
                raise ReplicaFailed(_sentence(call, str(error))) from error
            # The head is sent: only a broken connection can tell that the body is not whole (RFC
            # 9112, 8).
            _cut(call.request, response)
        return response

    async def _begin(
        self, call: Forwarded, connection: ReplicaConnection, response: web.StreamResponse
    ) -> bytes:
        """Send the head of the answer now; return the first part of its body."""
        # A client of an event stream waits for the head long before the first event.
        await response.prepare(call.request)
        return await connection.read()


def _was_sent(call: Forwarded) -> bool:
    """Return whether the replica has the whole request. A replica may answer before, and would take
    the next request on its connection for the rest of this one."""
    sending = call.sending
    if sending is None:
        return True
    return sending.done() and not sending.cancelled() and sending.exception() is None


def _sentence(call: Forwarded, what: str) -> str:
    return f"a replica of the service {call.service} {what}"


def _response(call: Forwarded, head: ResponseHead) -> web.StreamResponse:
    answered = _answered(call, head)
    response = web.StreamResponse(status=answered.status, reason=answered.reason or None)
    for name, value in answered.headers:
        response.headers.add(name, value)
    response[FROM_REPLICA] = frozenset(name.lower() for name, _ in answered.headers)
    return response


def _answered(call: Forwarded, head: ResponseHead) -> ResponseHead:
    """Return the head for the client."""
    pairs = headers.response_headers(
        head.headers,
        prefix=call.prefix,
        stripped=call.stripped,
        hosts=call.hosts,
        own_origin=call.own_origin,
    )
    return ResponseHead(head.status, head.reason, pairs)


def _cut(request: web.Request, response: web.StreamResponse) -> None:
    """Break the connection, so that the client does not take the answer for a whole one."""
    transport = request.transport
    if transport is None:
        return
    if request.version < (1, 1) and response.content_length is None:
        # The body of such an answer ends with the connection (RFC 9112, 6.3): only a reset says
        # that this is not its end.
        transport.abort()
    else:
        transport.close()


async def _end(call: Forwarded) -> None:
    """End the upload, if it goes on after the answer."""
    if call.sending is not None:
        sending, call.sending = call.sending, None
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


class HangUps:
    """Ends the requests of clients that went away.

    aiohttp tells a handler of that only when it writes, and a replica may think for minutes.
    """

    def __init__(self, every: float = 0.5) -> None:
        self._every = every
        self._open: dict[asyncio.Task[object], web.Request] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @contextmanager
    def watched(self, request: web.Request) -> Iterator[Callable[[], object]]:
        """Cancel this task when the client is gone. The value cancels it for another reason."""
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = request
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._every, self._look)
        try:
            yield task.cancel
        finally:
            del self._open[task]
            if not self._open and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _look(self) -> None:
        for task, request in tuple(self._open.items()):
            # aiohttp takes the transport away when the client's connection is lost.
            if request.transport is None:
                task.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._every, self._look)
