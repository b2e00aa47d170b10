"""A runner in this process, behind its real socket, and what tests ask of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from fairlead.wire.frames import Decoder, Frame, Stream
from fairlead.wire.job import JobSpec, SubmitRequest
from fairlead.wire.runner import ExitRecord, RunnerState, StatusEvent
from runner.client import BASE_URL, RunnerClient
from runner.options import Settings
from runner.processes.spawn import Children
from runner.runner import Runner
from runner.server import served
from runner.sockets import Peers
from tests.doubles.scopes import SessionScope
from tests.support.dialling import dial_to
from tests.support.waiting import LONG

DEADLINE = LONG


def a_job(*commands: str, secrets: dict[str, str] | None = None, **fields: Any) -> SubmitRequest:
    ids = {"run_id": "r1", "run_name": "hello", "job_id": "j1", "attempt_id": "a1"}
    place = {"group": "main", "cookie": 0, "index": 0, "job_count": 1, "group_job_count": 1}
    job = msgspec.convert({**ids, **place, "commands": commands, **fields}, JobSpec)
    return SubmitRequest(job=job, secrets=secrets or {})


@contextlib.asynccontextmanager
async def a_session(socket: Path) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(str(socket))
    async with aiohttp.ClientSession(base_url=BASE_URL, connector=connector) as session:
        yield session


@contextlib.asynccontextmanager
async def a_runner(
    folder: Path, settings: Settings | None = None
) -> AsyncIterator[tuple[Runner, RunnerClient]]:
    runner = Runner(folder / "task", scope=SessionScope(), children=Children(), settings=settings)
    socket = folder / "runner.sock"
    try:
        async with served(runner, socket, Peers.ANY), a_session(socket) as session:
            dial = partial(asyncio.open_unix_connection, socket)
            yield runner, RunnerClient(session, dial=dial, dial_answer=dial_to(socket))
            await runner.close()
    finally:
        await runner.close()


async def until(client: RunnerClient, state: RunnerState) -> StatusEvent:
    async with asyncio.timeout(DEADLINE):
        events = client.status_events()
        try:
            async for event in events:
                if event.state is state:
                    return event
        finally:
            await events.aclose()
    raise AssertionError(f"the runner ended before it was {state}")


async def until_output(client: RunnerClient, text: bytes) -> bytes:
    """All output up to and with `text`."""
    seen = b""
    async with asyncio.timeout(DEADLINE):
        while text not in seen:
            seen = payload(frames_of((await client.logs(0, wait=1)).frames))
    return seen


async def exit_of(client: RunnerClient) -> ExitRecord:
    record = (await until(client, RunnerState.SERVING_LOGS)).exit
    assert record is not None
    return record


async def run_job(client: RunnerClient, request: SubmitRequest) -> ExitRecord:
    await client.submit(request)
    await client.run()
    return await exit_of(client)


async def followed(client: RunnerClient, offset: int = 0) -> list[Frame]:
    """All frames from `offset` to the end of the job."""
    async with asyncio.timeout(DEADLINE):
        return frames_of(b"".join([piece async for piece in client.follow_logs(offset)]))


def frames_of(raw: bytes) -> list[Frame]:
    decoder = Decoder()
    frames = list(decoder.feed(raw))
    assert decoder.pending == 0
    return frames


def payload(frames: Iterable[Frame], stream: Stream | None = None) -> bytes:
    return b"".join(f.payload for f in frames if stream is None or f.stream is stream)
