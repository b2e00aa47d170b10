"""A simulated node's part of a job: the shim's record of its task, and its runner's answers."""

from __future__ import annotations

import asyncio
import time

import msgspec
from aiohttp import web

from fairlead.wire.frames import Frame, Stream, encode
from fairlead.wire.node import AllocationInfo
from fairlead.wire.runner import ExitRecord, RunnerState, StatusEvent
from fairlead.wire.shim import TaskInfo, TaskRequest, TaskStatus, TaskTimes

LINE = b"training\n"


class NodeJob:
    """A job that starts at once, writes one line and goes on until `end`."""

    def __init__(self, task_id: str, request: TaskRequest, incarnation: int, socket: str) -> None:
        now = time.time()
        self.ended = asyncio.Event()
        self.streams: set[web.StreamResponse] = set()
        self.states = [StatusEvent(seq=1, at=now, state=RunnerState.WAITING_FOR_JOB)]
        self.started = asyncio.Event()
        self.allocation = AllocationInfo(
            id=request.allocation_id,
            run_id=request.run_id,
            cpu=request.resources.cpu,
            memory=request.resources.memory,
            disk=0,
            task_ids=(task_id,),
        )
        self.info = TaskInfo(
            id=task_id,
            run_id=request.run_id,
            run_name=request.run_name,
            allocation_id=request.allocation_id,
            status=TaskStatus.RUNNING,
            image=request.image,
            incarnation=incarnation,
            runner_socket=socket,
            gpus=request.resources.gpu.uuids,
            version=1,
            times=TaskTimes(submitted_at=now, preparing_at=now, creating_at=now, running_at=now),
        )

    @property
    def log(self) -> bytes:
        return encode(Frame(0, int(time.time() * 1e9), Stream.STDOUT, LINE))

    async def enter(self, state: RunnerState, record: ExitRecord | None = None) -> StatusEvent:
        event = StatusEvent(seq=len(self.states) + 1, at=time.time(), state=state, exit=record)
        self.states.append(event)
        await self.say(event)
        return event

    async def say(self, event: StatusEvent) -> None:
        line = msgspec.json.encode(event) + b"\n"
        for stream in tuple(self.streams):
            await tell(stream, line)

    async def end(self) -> float:
        """End the job; return the Unix time at which the runner reported it."""
        at = time.time()
        record = ExitRecord(
            reason="done_by_runner",
            exit_code=0,
            started_at=self.info.times.running_at,
            finished_at=at,
            log_end=len(LINE),
        )
        await self.enter(RunnerState.SERVING_LOGS, record)
        self.ended.set()
        return at

    def terminated(self, reason: str | None = None) -> TaskInfo:
        """Return the task's state once the container is gone."""
        last = self.states[-1].exit
        self.info = msgspec.structs.replace(
            self.info,
            status=TaskStatus.TERMINATED,
            reason=reason,
            exit_record=None if last is None else msgspec.json.encode(last).decode(),
            exit_code=0,
            version=self.info.version + 1,
            times=msgspec.structs.replace(self.info.times, terminated_at=time.time()),
        )
        self.ended.set()
        return self.info


async def tell(stream: web.StreamResponse, line: bytes) -> None:
    try:
        await stream.write(line)
    except ConnectionError:
        return
