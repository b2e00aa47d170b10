"""A typed client of the shim's API.

The caller gives the `aiohttp.ClientSession`, and with it the way to the socket (a unix connector,
or a channel of an SSH connection). With `kept`, only logs and outputs need the session. A refusal
raises `ShimError`, a lost connection `ShimUnavailable`, and nothing else is raised.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from common.http import why_lost
from common.kept_connections import Answer, KeptConnections
from common.open_answers import Dial, InvalidAnswer, open_answer
from fairlead.wire.decoders import decoder_of
from fairlead.wire.errors import AgentError, AgentUnavailable, read_error
from fairlead.wire.node import AllocationInfo, Finding, HostKey, NodeInfo, NodeMetrics
from fairlead.wire.shim import (
    FENCE_HEADER,
    INCARNATION_HEADER,
    LOG_START_HEADER,
    OUTPUTS_HEADER,
    RUN_HEADER,
    DrainRequest,
    Event,
    ExposedPort,
    ExposeRequest,
    Fence,
    GatewayKeys,
    Health,
    TaskInfo,
    TaskRequest,
    TerminateRequest,
    WantedImages,
)
from fairlead.wire.sizes import OutputsAbout

T = TypeVar("T")

BASE_URL = "http://shim"
_SILENCE = 30.0
"""Seconds without a byte that end an event stream; the shim's heartbeat comes every 10."""
_MAX_EVENT = 64 << 20
_MAX_ANSWER = 64 << 20


class ShimError(AgentError):
    """The shim refused the request."""


class ShimUnavailable(AgentUnavailable):
    """No answer came, or it broke off; it is unknown whether the request had its effect."""


class LogStream:
    """A log being read. `start` is the payload offset of the first frame of `pieces`."""

    def __init__(self, start: int, response: aiohttp.ClientResponse) -> None:
        self.start = start
        self._response = response

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes. Raises ShimUnavailable when the connection breaks."""
        while piece := await _next_piece(self._response):
            yield piece


class OutputStream:
    """A task's outputs being read: a tar, from the offset on that was asked for."""

    def __init__(self, about: OutputsAbout, response: aiohttp.ClientResponse) -> None:
        self.about = about
        self._response = response

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes. Raises ShimUnavailable when the connection breaks."""
        while piece := await _next_piece(self._response):
            yield piece


class ShimClient:
    """The client. `silence`: seconds without a byte that end the event stream; None: no limit.
    `dial` connects to the shim's socket; `events` needs it. `kept`: connections to that socket, by
    which a request costs less than by the session."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str = BASE_URL,
        timeout: float = 30.0,
        silence: float | None = _SILENCE,
        dial: Dial | None = None,
        kept: KeptConnections | None = None,
    ) -> None:
        self._session = session
        self._dial = dial
        self._kept = kept
        self._silence = silence
        self._base = base_url
        self._timeout = aiohttp.ClientTimeout(total=timeout)

    async def health(self, *, fence: Fence | None = None) -> Health:
        headers = None if fence is None else {FENCE_HEADER: fence.header()}
        return await self._ask("GET", "/v1/health", Health, headers=headers)

    async def node(self) -> NodeInfo:
        return await self._ask("GET", "/v1/node", NodeInfo)

    async def node_metrics(self) -> NodeMetrics:
        return await self._ask("GET", "/v1/node/metrics", NodeMetrics)

    async def doctor(self) -> tuple[Finding, ...]:
        """Takes seconds: the node starts a container."""
        return await self._ask("GET", "/v1/node/doctor", tuple[Finding, ...])

    async def drain(self, request: DrainRequest) -> NodeInfo:
        return await self._ask("POST", "/v1/node/drain", NodeInfo, request)

    async def clear_gpu(self, uuid: str) -> NodeInfo:
        """Offer a cordoned GPU again. Raises ShimError `not_found` when it is not cordoned."""
        return await self._ask("POST", f"/v1/node/gpus/{uuid}/clear", NodeInfo)

    async def tasks(self) -> tuple[TaskInfo, ...]:
        return await self._ask("GET", "/v1/tasks", tuple[TaskInfo, ...])

    async def task(self, task_id: str) -> TaskInfo:
        return await self._ask("GET", f"/v1/tasks/{task_id}", TaskInfo)

    async def put_task(
        self, task_id: str, request: TaskRequest, *, fence: Fence, incarnation: int = 0
    ) -> TaskInfo:
        """Submit a task. It is accepted durably when this returns; the same body again returns the
        same task."""
        headers = _fence_headers(request.run_id, fence, incarnation)
        return await self._ask("PUT", f"/v1/tasks/{task_id}", TaskInfo, request, headers)

    async def claim(
        self, task_id: str, *, run_id: str, fence: Fence, incarnation: int = 0
    ) -> TaskInfo:
        """Claim a task durably: older fences are refused for its run from now on."""
        headers = _fence_headers(run_id, fence, incarnation)
        return await self._ask("POST", f"/v1/tasks/{task_id}/claim", TaskInfo, headers=headers)

    async def terminate(
        self,
        task_id: str,
        order: TerminateRequest,
        *,
        run_id: str,
        fence: Fence,
        incarnation: int = 0,
    ) -> TaskInfo:
        """Order the stop of a task. The order is durable when this returns; an event tells the
        end."""
        headers = _fence_headers(run_id, fence, incarnation)
        return await self._ask("POST", f"/v1/tasks/{task_id}/terminate", TaskInfo, order, headers)

    async def expose(
        self, task_id: str, port: int, *, run_id: str, fence: Fence, incarnation: int = 0
    ) -> ExposedPort:
        """Let gateways reach a port of a running task; durable when this returns. Raises ShimError
        `no_gateways` on a node that lends them nothing."""
        headers = _fence_headers(run_id, fence, incarnation)
        body = ExposeRequest(port=port)
        return await self._ask("PUT", f"/v1/tasks/{task_id}/exposed", ExposedPort, body, headers)

    async def put_gateways(self, keys: Iterable[str]) -> None:
        """Let gateways with exactly these keys log in."""
        await self._ask("PUT", "/v1/node/gateways", None, GatewayKeys(keys=tuple(keys)))

    async def put_images(self, wanted: WantedImages, *, fence: Fence) -> None:
        """Have the node pull exactly these images ahead. Raises ShimError `engine_lacks` where its
        engine has no images, and `fenced`."""
        headers = {FENCE_HEADER: fence.header()}
        await self._ask("PUT", "/v1/node/images", None, wanted, headers)

    async def prepare_host_key(self) -> HostKey:
        """Have the node make its next host key. Raises ShimError `not_found` where the shim leaves
        the node's host key alone."""
        return await self._ask("POST", "/v1/node/host-key", HostKey)

    async def use_host_key(self, key: str) -> None:
        """Have the node's sshd use the next host key, which must be this one."""
        await self._ask("PUT", "/v1/node/host-key", None, HostKey(key=key))

    async def remove_task(
        self, task_id: str, *, run_id: str, fence: Fence, incarnation: int = 0
    ) -> None:
        headers = _fence_headers(run_id, fence, incarnation)
        await self._ask("DELETE", f"/v1/tasks/{task_id}", None, headers=headers)

    async def allocations(self) -> tuple[AllocationInfo, ...]:
        return await self._ask("GET", "/v1/allocations", tuple[AllocationInfo, ...])

    async def release_allocation(
        self, allocation_id: str, *, run_id: str, fence: Fence, incarnation: int = 0
    ) -> None:
        headers = _fence_headers(run_id, fence, incarnation)
        await self._ask("DELETE", f"/v1/allocations/{allocation_id}", None, headers=headers)

    async def events(self, after: str | None = None) -> AsyncGenerator[Event, None]:
        """Yield events until the shim ends the stream. Raises ShimUnavailable when it breaks or is
        silent.

        Close it (`contextlib.aclosing`) when you leave it early.
        """
        if self._dial is None:
            raise ShimUnavailable("/v1/events: this connection cannot follow events")
        path = "/v1/events" if after is None else f"/v1/events?after={quote(after)}"
        decoder = decoder_of(Event)
        with _lost("GET /v1/events"):
            within = self._timeout.total or _SILENCE
            answer = await open_answer(self._dial, "shim", path, within)
            try:
                if answer.status != 200:
                    raise _refusal(answer.status, await answer.read(self._silence))
                while (line := await answer.read_line(_MAX_EVENT, self._silence)) is not None:
                    yield _event(decoder, line)
            finally:
                answer.close()

    @asynccontextmanager
    async def logs(self, task_id: str, offset: int = 0) -> AsyncIterator[LogStream]:
        """Read raw frames from the segment that holds `offset`; see `fairlead.wire.frames`."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE)
        path, params = f"/v1/tasks/{task_id}/logs", {"offset": str(offset)}
        async with await self._send("GET", path, params=params, limits=timeout) as response:
            yield LogStream(int(response.headers.get(LOG_START_HEADER, "0")), response)

    @asynccontextmanager
    async def outputs(
        self, task_id: str, *, offset: int, limit: int
    ) -> AsyncIterator[OutputStream]:
        """Read what the job of a terminated task left, at most `limit` bytes of content."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE)
        path = f"/v1/tasks/{task_id}/outputs"
        params = {"offset": str(offset), "limit": str(limit), "links": "1"}
        async with await self._send("GET", path, params=params, limits=timeout) as response:
            text = response.headers.get(OUTPUTS_HEADER, "")
            try:
                about = decoder_of(OutputsAbout).decode(text)
            except msgspec.DecodeError as error:
                raise ShimError("bad_answer", f"not understood: {error}", 200) from error
            yield OutputStream(about, response)

    async def _ask(
        self,
        method: str,
        path: str,
        answer: type[T] | None,
        body: msgspec.Struct | None = None,
        headers: dict[str, str] | None = None,
    ) -> T:
        data = None if body is None else msgspec.json.encode(body)
        status, content = await self._asked(method, path, headers, data)
        if status >= 400:
            raise _refusal(status, content)
        if answer is None:
            return None  # type: ignore[return-value]
        try:
            return decoder_of(answer).decode(content)
        except msgspec.DecodeError as error:
            raise ShimError("bad_answer", f"not understood: {error}", status) from error

    async def _asked(
        self, method: str, path: str, headers: dict[str, str] | None, data: bytes | None
    ) -> Answer:
        if self._kept is not None:
            within = self._timeout.total or _SILENCE
            with _lost(f"{method} {path}"):
                return await self._kept.ask(
                    method, path, headers, data, within=within, most=_MAX_ANSWER
                )
        async with await self._send(
            method, path, data=data, headers=headers, limits=self._timeout
        ) as response:
            with _lost(path):
                return Answer(response.status, await response.read())

    async def _send(
        self,
        method: str,
        path: str,
        *,
        limits: aiohttp.ClientTimeout,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        params: dict[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        if self._session.closed:
            raise ShimUnavailable(f"{method} {path}: this connection was closed")
        with _lost(f"{method} {path}"):
            response = await self._session.request(
                method,
                self._base + path,
                data=data,
                headers=headers,
                params=params,
                timeout=limits,
            )
            if response.status < 400:
                return response
            async with response:
                raise _refusal(response.status, await response.read())


@contextmanager
def _lost(what: str) -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError, InvalidAnswer) as error:
        raise ShimUnavailable(f"{what}: {why_lost(error)}") from error


def _event(decoder: msgspec.json.Decoder[Event], line: bytes) -> Event:
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        raise ShimError("bad_answer", f"not an event: {error}", 200) from error


async def _next_piece(response: aiohttp.ClientResponse) -> bytes:
    """Return the next bytes; empty at the end."""
    with _lost(response.url.path):
        return await response.content.readany()


def _fence_headers(run_id: str, fence: Fence, incarnation: int) -> dict[str, str]:
    return {
        RUN_HEADER: run_id,
        FENCE_HEADER: fence.header(),
        INCARNATION_HEADER: str(incarnation),
    }


def _refusal(status: int, body: bytes) -> ShimError:
    detail = read_error(body)
    if detail is None:
        return ShimError("bad_answer", f"the shim answered with status {status}", status)
    return ShimError(detail.code, detail.message, status, detail.field)
