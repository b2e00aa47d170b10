"""A process that is many nodes: `python -m bench.scale.nodes FOLDER FIRST COUNT`.

Each node has two unix sockets, the shim's `N.s` and its runner's `N.r`, and speaks their wire
protocol as the controller's clients know it. It stores nothing and makes no container, so a node
costs little. `control.FIRST` is for the bench: it ends jobs and cuts connections.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from weakref import WeakSet

import msgspec
from aiohttp import WSCloseCode, web

from bench.scale.jobs import LINE, NodeJob, tell
from fairlead.wire.node import EngineKind, NodeInfo
from fairlead.wire.runner import (
    LOG_COMPLETE_HEADER,
    LOG_END_HEADER,
    AckRequest,
    LogsHeader,
    RunnerState,
)
from fairlead.wire.shim import INCARNATION_HEADER, Event, EventType, Health, TaskInfo, TaskRequest
from runner.client import STATUS_HEARTBEAT

HEARTBEAT_SECONDS = 10.0
BEATS_OF_A_RUNNER = int(STATUS_HEARTBEAT / HEARTBEAT_SECONDS)
GIB = 1 << 30
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Node:
    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.shim_socket = folder / f"{name}.s"
        self.runner_socket = folder / f"{name}.r"
        self.jobs: dict[str, NodeJob] = {}
        self.transports: WeakSet[asyncio.Transport] = WeakSet()
        self._streams: set[web.StreamResponse] = set()
        self._seq = 0
        self._beats = 0
        self._health = Health(
            version="simulated",
            api_versions=("v1",),
            boot_id=secrets.token_hex(8),
            install_id=secrets.token_hex(8),
            epoch=secrets.token_hex(4),
        )

    def cut(self) -> None:
        for transport in tuple(self.transports):
            transport.abort()

    async def beat(self) -> None:
        """Send the heartbeats of shim and runner."""
        await self._publish(EventType.HEARTBEAT)
        self._beats += 1
        if self._beats % BEATS_OF_A_RUNNER == 0:
            for job in self.jobs.values():
                await job.say(job.states[-1])

    async def _publish(self, kind: EventType, info: TaskInfo | None = None) -> None:
        self._seq += kind is not EventType.HEARTBEAT
        task_id = None if info is None else info.id
        task = info if kind is EventType.TASK else None
        line = msgspec.json.encode(
            Event(cursor=f"{self._health.epoch}.{self._seq}", type=kind, task=task, task_id=task_id)
        )
        for stream in tuple(self._streams):
            await tell(stream, line + b"\n")

    # -- the shim ---------------------------------------------------------------------------

    async def shim(self, request: web.BaseRequest) -> web.StreamResponse:
        match request.method, request.path.removeprefix("/v1/").split("/"):
            case "GET", ["health"]:
                return _json(self._health)
            case "GET", ["node"]:
                return _json(self._info())
            case "GET", ["tasks"]:
                return _json(tuple(job.info for job in self.jobs.values()))
            case "GET", ["allocations"]:
                return _json([job.allocation for job in self.jobs.values()])
            case "GET", ["events"]:
                return await self._events(request)
            case "GET", ["tasks", task_id] if task_id in self.jobs:
                return _json(self.jobs[task_id].info)
            case "PUT", ["tasks", task_id]:
                return await self._put(request, task_id)
            case "POST", ["tasks", task_id, "terminate"] if task_id in self.jobs:
                job = self.jobs[task_id]
                await self._publish(EventType.TASK, job.terminated("terminated_by_user"))
                return _json(job.info)
            case "DELETE", ["tasks", task_id] if task_id in self.jobs:
                await self._publish(EventType.REMOVED, self.jobs.pop(task_id).info)
                return web.Response(status=204)
            case "DELETE", ["allocations", _]:
                return web.Response(status=204)
            case _:
                return web.json_response(
                    {"error": {"code": "not_found", "message": request.path}}, status=404
                )

    def _info(self) -> NodeInfo:
        return NodeInfo(
            hostname=self.name,
            engine=EngineKind.DOCKER,
            engine_version=None,
            isolation=True,
            cpu=8.0,
            memory=64 * GIB,
            disk=512 * GIB,
            cpu_allocated=0.0,
            memory_allocated=0,
            disk_allocated=0,
            addresses=("127.0.0.1",),
        )

    async def _put(self, request: web.BaseRequest, task_id: str) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read(), type=TaskRequest)
        if task_id not in self.jobs:
            incarnation = int(request.headers.get(INCARNATION_HEADER, "0"))
            job = NodeJob(task_id, body, incarnation, str(self.runner_socket))
            self.jobs[task_id] = job
            await self._publish(EventType.TASK, job.info)
        return _json(self.jobs[task_id].info)

    async def _events(self, request: web.BaseRequest) -> web.StreamResponse:
        stream = await self._stream(request)
        self._streams.add(stream)
        try:
            await self._publish(EventType.HEARTBEAT)
            await asyncio.Event().wait()
        finally:
            self._streams.discard(stream)
        return stream

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await stream.prepare(request)
        return stream

    # -- the runner -------------------------------------------------------------------------

    async def runner(self, request: web.BaseRequest) -> web.StreamResponse:
        job = next(reversed(self.jobs.values()), None)
        if job is None:
            return web.Response(status=503)
        match request.method, request.path:
            case "POST", "/v1/submit":
                if len(job.states) == 1:
                    await job.enter(RunnerState.READY)
                return _json(job.states[-1])
            case "POST", "/v1/run":
                if len(job.states) == 2:
                    await job.enter(RunnerState.RUNNING)
                job.started.set()
                return _json(job.states[-1])
            case "POST", "/v1/start":
                return await self._start(job)
            case "POST", "/v1/stop":
                await job.end()
                return _json(job.states[-1])
            case "POST", "/v1/logs/ack":
                return await self._ack(request, job)
            case "GET", "/v1/status":
                return await self._status(request, job)
            case "GET", "/v1/logs":
                return await self._page(request, job)
            case "GET", "/v1/logs/ws":
                return await self._follow(request, job)
            case _:
                return web.Response(status=404)

    async def _start(self, job: NodeJob) -> web.StreamResponse:
        if len(job.states) == 1:
            await job.enter(RunnerState.READY)
            await job.enter(RunnerState.RUNNING)
        job.started.set()
        return _json(job.states[-1])

    async def _page(self, request: web.BaseRequest, job: NodeJob) -> web.StreamResponse:
        await job.started.wait()
        whole = int(request.query.get("offset", "0")) < len(LINE)
        headers = {
            LOG_COMPLETE_HEADER: "true" if job.ended.is_set() else "false",
            LOG_END_HEADER: str(len(LINE)),
        }
        return web.Response(body=job.log if whole else b"", headers=headers)

    async def _ack(self, request: web.BaseRequest, job: NodeJob) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read(), type=AckRequest)
        if job.ended.is_set() and body.offset >= len(LINE) and job.info.times.terminated_at is None:
            await self._publish(EventType.TASK, job.terminated())
        return _json(body)

    async def _status(self, request: web.BaseRequest, job: NodeJob) -> web.StreamResponse:
        stream = await self._stream(request)
        for event in job.states:
            await tell(stream, msgspec.json.encode(event) + b"\n")
        job.streams.add(stream)
        try:
            await asyncio.Event().wait()
        finally:
            job.streams.discard(stream)
        return stream

    async def _follow(self, request: web.BaseRequest, job: NodeJob) -> web.StreamResponse:
        offset = int(request.query.get("offset", "0"))
        socket = web.WebSocketResponse(compress=False, timeout=2.0)
        await socket.prepare(request)
        await socket.send_str(msgspec.json.encode(LogsHeader(offset=offset)).decode())
        await job.started.wait()
        if offset < len(LINE):
            await socket.send_bytes(job.log)
        reading = asyncio.ensure_future(socket.receive())
        ending = asyncio.ensure_future(job.ended.wait())
        await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()
        ending.cancel()
        await asyncio.gather(reading, ending, return_exceptions=True)
        if job.ended.is_set():
            await socket.close(code=WSCloseCode.OK)
        return socket


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


class Swarm:
    def __init__(self, folder: Path, first: int, count: int) -> None:
        self._folder = folder
        self._first = first
        self._nodes = [Node(f"n{number:05}", folder) for number in range(first, first + count)]

    async def run(self) -> None:
        for node in self._nodes:
            await self._listen(node, node.shim, node.shim_socket)
            await self._listen(node, node.runner, node.runner_socket)
        control = web.Application()
        control.router.add_post("/end/{run}", self._end)
        control.router.add_post("/cut/{count}", self._cut)
        site = web.AppRunner(control)
        await site.setup()
        await web.UnixSite(site, str(self._folder / f"control.{self._first}")).start()
        await self._beat()

    async def _listen(self, node: Node, handler: Handler, socket: Path) -> None:
        async def serve(request: web.BaseRequest) -> web.StreamResponse:
            if request.transport is not None:
                node.transports.add(request.transport)
            return await handler(request)

        # By default aiohttp lets a handler wait on after its client has hung up.
        server = web.Server(serve, access_log=None, handler_cancellation=True)
        loop = asyncio.get_running_loop()
        await loop.create_unix_server(server, str(socket), backlog=64)
        os.chmod(socket, 0o666)

    async def _beat(self) -> None:
        while True:
            began = time.monotonic()
            for number, node in enumerate(self._nodes):
                # Spread, as with real nodes: their shims did not start in the same moment.
                due = began + HEARTBEAT_SECONDS * number / len(self._nodes)
                if due > time.monotonic():
                    await asyncio.sleep(due - time.monotonic())
                await node.beat()
            await asyncio.sleep(began + HEARTBEAT_SECONDS - time.monotonic())

    async def _end(self, request: web.Request) -> web.Response:
        name = request.match_info["run"]
        for node in self._nodes:
            for job in node.jobs.values():
                if job.info.run_name == name:
                    return web.json_response({"at": await job.end()})
        return web.json_response({}, status=404)

    async def _cut(self, request: web.Request) -> web.Response:
        for node in self._nodes[: int(request.match_info["count"])]:
            node.cut()
        return web.json_response({"at": time.time()})


def main() -> None:
    folder, first, count = sys.argv[1:]
    asyncio.run(Swarm(Path(folder), int(first), int(count)).run())


if __name__ == "__main__":
    main()
