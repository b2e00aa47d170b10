"""The shim's HTTP API on its unix socket.

Routes are thin: they decode, ask the supervisor and encode. Every refusal has the one error shape,
and no traceback leaves the process. Logs are sent as raw bytes of their segment files, also after
the container has gone; the controller decodes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from common.files import log_segments
from common.files.task_folder import LOGS_FOLDER_NAME
from common.http import errors_as_json, json_response, read_body
from fairlead.wire.node import HostKey
from fairlead.wire.shim import (
    FENCE_HEADER,
    INCARNATION_HEADER,
    LOG_START_HEADER,
    OUTPUTS_HEADER,
    RUN_HEADER,
    DrainRequest,
    ExposeRequest,
    Fence,
    GatewayKeys,
    TaskRequest,
    TaskStatus,
    TerminateRequest,
    WantedImages,
)
from fairlead.wire.sizes import is_count
from shim.access.host_key import NodeHostKey
from shim.api.openapi import document
from shim.daemon import Daemon
from shim.errors import conflict, invalid, not_found
from shim.files import outputs, safe_files
from shim.monitoring.metrics import CONTENT_TYPE, prometheus_text
from shim.state.fencing import Caller

_PIECE = 1 << 18
_MAX_BYTES = 4 << 30
"""A job may have made a sparse file of any size; no real log is this long."""


class LogSource(msgspec.Struct, frozen=True):
    """Segments to send. `start` is the payload offset of the first frame in `segments`."""

    start: int
    segments: tuple[str, ...]


def find_segments(job_folder: Path, offset: int) -> LogSource:
    """Return the segments from the one that holds `offset` (or the first kept) to the last.
    Blocking."""
    starts = log_segments.starts(safe_files.list_names(job_folder, LOGS_FOLDER_NAME))
    if not starts:
        return LogSource(0, ())
    before = [start for start in starts if start <= offset]
    first = before[-1] if before else starts[0]
    names = tuple(
        f"{LOGS_FOLDER_NAME}/{log_segments.name(start)}" for start in starts if start >= first
    )
    return LogSource(first, names)


async def read_segments(
    job_folder: Path, source: LogSource, executor: Executor
) -> AsyncIterator[bytes]:
    """Yield the raw bytes of the segments; end early at a file that is gone or not safe."""
    loop = asyncio.get_running_loop()
    left = _MAX_BYTES
    for name in source.segments:
        try:
            fd = safe_files.open_regular(job_folder, name)
        except OSError:
            return
        try:
            # A job that writes on must not keep the answer going: what is there now is sent.
            size = min(os.fstat(fd).st_size, left)
            at = 0
            while at < size:
                want = min(_PIECE, size - at)
                piece = await loop.run_in_executor(executor, os.pread, fd, want, at)
                # The job has cut the file since: what it has now is all there is.
                if not piece:
                    break
                at += len(piece)
                yield piece
            left -= at
        finally:
            os.close(fd)


log = logging.getLogger(__name__)
T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_MAX_BODY = 1 << 20
_FAILED = "the shim failed on this request; see its log"


class Routes:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def table(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/health", self.health),
            web.get("/v1/openapi.json", self.openapi),
            web.get("/v1/node", self.node),
            web.get("/v1/node/metrics", self.node_metrics),
            web.get("/v1/node/doctor", self.doctor),
            web.get("/metrics", self.prometheus),
            web.post("/v1/node/drain", self.drain),
            web.post("/v1/node/gpus/{id}/clear", self.clear_gpu),
            web.put("/v1/node/gateways", self.put_gateways),
            web.put("/v1/node/images", self.put_images),
            web.post("/v1/node/host-key", self.prepare_host_key),
            web.put("/v1/node/host-key", self.use_host_key),
            web.get("/v1/allocations", self.allocations),
            web.delete("/v1/allocations/{id}", self.release),
            web.get("/v1/tasks", self.tasks),
            web.get("/v1/tasks/{id}", self.task),
            web.put("/v1/tasks/{id}", self.put_task),
            web.delete("/v1/tasks/{id}", self.remove_task),
            web.post("/v1/tasks/{id}/claim", self.claim),
            web.put("/v1/tasks/{id}/exposed", self.expose),
            web.post("/v1/tasks/{id}/terminate", self.terminate),
            web.get("/v1/tasks/{id}/logs", self.task_logs),
            web.get("/v1/tasks/{id}/outputs", self.task_outputs),
            web.get("/v1/events", self.events),
        ]

    async def health(self, request: web.Request) -> web.Response:
        return json_response(self._daemon.health())

    async def openapi(self, request: web.Request) -> web.Response:
        return json_response(document())

    async def node(self, request: web.Request) -> web.Response:
        return json_response(await self._daemon.node())

    async def node_metrics(self, request: web.Request) -> web.Response:
        return json_response(await self._daemon.metrics())

    async def doctor(self, request: web.Request) -> web.Response:
        return json_response(await self._daemon.examine())

    async def prometheus(self, request: web.Request) -> web.Response:
        reading = await self._daemon.metrics()
        body = await self._daemon.in_thread(prometheus_text, reading)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def drain(self, request: web.Request) -> web.Response:
        await self._daemon.drain(await read_body(request, DrainRequest, "body"))
        return json_response(await self._daemon.node())

    async def clear_gpu(self, request: web.Request) -> web.Response:
        await self._daemon.supervisor.clear_gpu(request.match_info["id"])
        return json_response(await self._daemon.node())

    async def put_gateways(self, request: web.Request) -> web.Response:
        await self._daemon.exposed.put_keys(await read_body(request, GatewayKeys, "body"))
        return web.Response(status=204)

    async def put_images(self, request: web.Request) -> web.Response:
        fence = _fence(request)
        self._daemon.images_ahead.want(await read_body(request, WantedImages, "body"), fence)
        return web.Response(status=204)

    async def prepare_host_key(self, request: web.Request) -> web.Response:
        return json_response(await self._host_key().prepare())

    async def use_host_key(self, request: web.Request) -> web.Response:
        await self._host_key().use((await read_body(request, HostKey, "body")).key)
        return web.Response(status=204)

    def _host_key(self) -> NodeHostKey:
        if self._daemon.host_key is None:
            raise not_found("this shim leaves the node's host key alone")
        return self._daemon.host_key

    async def expose(self, request: web.Request) -> web.Response:
        caller = _caller(request)
        wanted = await read_body(request, ExposeRequest, "body")
        task = await self._daemon.supervisor.commanded(request.match_info["id"], caller)
        return json_response(await self._daemon.exposed.expose(task.info, wanted.port))

    async def allocations(self, request: web.Request) -> web.Response:
        return json_response(self._daemon.supervisor.allocations)

    async def release(self, request: web.Request) -> web.Response:
        await self._daemon.supervisor.release(request.match_info["id"], _caller(request))
        return web.Response(status=204)

    async def tasks(self, request: web.Request) -> web.Response:
        return json_response(self._daemon.supervisor.infos)

    async def task(self, request: web.Request) -> web.Response:
        return json_response(self._daemon.supervisor.info(request.match_info["id"]))

    async def put_task(self, request: web.Request) -> web.Response:
        caller = _caller(request)
        wanted = await read_body(request, TaskRequest, "body")
        info, new = await self._daemon.supervisor.put(request.match_info["id"], wanted, caller)
        return json_response(info, status=201 if new else 200)

    async def remove_task(self, request: web.Request) -> web.Response:
        await self._daemon.supervisor.remove(request.match_info["id"], _caller(request))
        return web.Response(status=204)

    async def claim(self, request: web.Request) -> web.Response:
        """Claim a task: only requests with this fence or a newer one are accepted from now on."""
        supervisor = self._daemon.supervisor
        task = await supervisor.commanded(request.match_info["id"], _caller(request))
        return json_response(task.info)

    async def terminate(self, request: web.Request) -> web.Response:
        caller = _caller(request)
        order = await read_body(request, TerminateRequest, "body")
        return json_response(
            await self._daemon.supervisor.terminate(request.match_info["id"], order, caller)
        )

    async def task_logs(self, request: web.Request) -> web.StreamResponse:
        info = self._daemon.supervisor.info(request.match_info["id"])
        folder = self._daemon.settings.job_folder(info.id)
        source = await self._daemon.in_thread(find_segments, folder, _offset(request))
        response = web.StreamResponse(headers={LOG_START_HEADER: str(source.start)})
        response.content_type = "application/octet-stream"
        with _reader_may_leave(request):
            await response.prepare(request)
            try:
                async for piece in read_segments(folder, source, self._daemon.executor):
                    await response.write(piece)
            # The head is sent, so the answer can only end before what the job has put in its log's
            # place.
            except safe_files.UnsafeFile as error:
                log.warning("task %s: %s", info.id, error)
            await response.write_eof()
        return response

    async def task_outputs(self, request: web.Request) -> web.StreamResponse:
        """Send what the job left in its output folder as a tar, once its container is gone."""
        info = self._daemon.supervisor.info(request.match_info["id"])
        if info.status is not TaskStatus.TERMINATED:
            raise conflict(f"task {info.id} is {info.status}: its job may still write")
        folder = self._daemon.settings.job_folder(info.id)
        offset, limit = _offset(request), _offset(request, "limit")
        links = request.query.get("links") == "1"
        made = await self._daemon.in_thread(outputs.plan, folder, limit, links=links)
        about = msgspec.json.encode(made.about).decode()
        response = web.StreamResponse(headers={OUTPUTS_HEADER: about})
        response.content_type = "application/octet-stream"
        with _reader_may_leave(request):
            await response.prepare(request)
            async for piece in outputs.read(folder, made, offset, self._daemon.executor):
                await response.write(piece)
            await response.write_eof()
        return response

    async def events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "application/x-ndjson"
        with _reader_may_leave(request):
            await response.prepare(request)
            async for event in self._daemon.events.follow(request.query.get("after")):
                await response.write(msgspec.json.encode(event) + b"\n")
        return response


@contextlib.contextmanager
def _reader_may_leave(request: web.Request) -> Iterator[None]:
    """Ignore a stream's reader that goes away: that is no error."""
    try:
        yield
    except ConnectionError:
        log.debug("%s %s: the reader has gone away", request.method, request.path)


def _note_contact(daemon: Daemon) -> Middleware:
    """Count each accepted request with a fence as contact to a controller."""

    @web.middleware
    async def noting_contact(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if FENCE_HEADER in request.headers:
            # Only a route that asks for no fence lets a malformed one pass.
            with contextlib.suppress(ValueError):
                daemon.heard(Fence.parse(request.headers[FENCE_HEADER]))
        return response

    return noting_contact


def make_app(daemon: Daemon) -> web.Application:
    middlewares = [errors_as_json(log, _FAILED), _note_contact(daemon)]
    app = web.Application(middlewares=middlewares, client_max_size=_MAX_BODY)
    app.add_routes(Routes(daemon).table())
    return app


def make_runner(daemon: Daemon, *, shutdown_timeout: float) -> web.AppRunner:
    """Serve the application. Bodies are used as they were sent, never unpacked."""
    return web.AppRunner(
        make_app(daemon),
        access_log=None,
        auto_decompress=False,
        shutdown_timeout=shutdown_timeout,
    )


def _caller(request: web.Request) -> Caller:
    fence = _fence(request)
    incarnation = _header(request, INCARNATION_HEADER)
    if not is_count(incarnation):
        raise invalid(f"not a whole number: {incarnation!r:.80}", INCARNATION_HEADER)
    return Caller(_header(request, RUN_HEADER), fence, int(incarnation))


def _fence(request: web.Request) -> Fence:
    try:
        return Fence.parse(_header(request, FENCE_HEADER))
    except ValueError as error:
        raise invalid(str(error), FENCE_HEADER) from None


def _header(request: web.Request, name: str) -> str:
    value = request.headers.get(name)
    if not value:
        raise invalid(f"the header {name} is needed for this request", name)
    return value


def _offset(request: web.Request, name: str = "offset") -> int:
    text = request.query.get(name, "0")
    if not is_count(text):
        raise invalid(f"{name} must be a number of bytes: {text!r:.80}", name)
    return int(text)
