"""Followers that stop reading, leave, ask for nonsense, or meet files that the job has changed."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from fairlead.wire.frames import Stream
from fairlead.wire.job import Repo
from fairlead.wire.runner import WS_TOO_SLOW, RunnerState
from runner.client import RunnerClient, RunnerError, RunnerUnavailable
from runner.options import Settings
from runner.processes.spawn import Children
from runner.runner import Runner
from runner.server import served
from runner.sockets import Peers
from tests.doubles.scopes import SessionScope
from tests.support.dialling import dial_to
from tests.support.waiting import eventually
from tests.unit.runner.harness import (
    DEADLINE,
    a_job,
    a_runner,
    a_session,
    exit_of,
    followed,
    frames_of,
    payload,
    run_job,
    until_output,
)

HANDSHAKE = (
    b"GET /v1/logs/ws?offset=0 HTTP/1.1\r\nHost: runner\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@contextlib.asynccontextmanager
async def an_impatient_runner(folder: Path) -> AsyncIterator[tuple[Runner, RunnerClient]]:
    """Drops a follower that took nothing for 0.1 s."""
    runner = Runner(folder / "task", scope=SessionScope(), children=Children())
    path = folder / "runner.sock"
    try:
        async with (
            served(runner, path, Peers.ANY, patience=0.1),
            a_session(path) as session,
        ):
            yield runner, RunnerClient(session, dial_answer=dial_to(path))
            await runner.close()
    finally:
        await runner.close()


@contextlib.asynccontextmanager
async def a_stalled_follower(folder: Path) -> AsyncIterator[socket.socket]:
    """Has asked for the log and reads nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, str(folder / "runner.sock"))
        await loop.sock_sendall(connection, HANDSHAKE)
        yield connection


async def read_until(connection: socket.socket, text: bytes) -> bytes:
    """The bytes that arrive until they hold `text` or the connection ends."""
    loop, received = asyncio.get_running_loop(), b""
    async with asyncio.timeout(DEADLINE):
        while text not in received[-200:] and (data := await loop.sock_recv(connection, 1 << 20)):
            received += data
    return received


async def test_a_stalled_follower_is_dropped_with_its_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        an_impatient_runner(tmp_path) as (_, client),
        a_stalled_follower(tmp_path) as connection,
    ):
        await run_job(client, a_job("head -c 20000000 /dev/zero"))
        await eventually(lambda: "a follower is dropped" in caplog.text)
        code = WS_TOO_SLOW.to_bytes(2, "big")
        received = await read_until(connection, code)
    assert code in received[-200:]


async def test_a_stalled_follower_disturbs_neither_job_nor_others(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client), a_stalled_follower(tmp_path):
        await client.submit(a_job("head -c 20000000 /dev/zero"))
        await client.run()
        assert len(payload(await followed(client))) == 20_000_000


async def test_a_follower_waits_for_what_comes_later(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        os.mkfifo(tmp_path / "go")
        commands = ("echo one", "read line < go; echo $line")
        await client.submit(a_job(*commands, working_dir=str(tmp_path)))
        following = asyncio.create_task(followed(client))
        await client.run()
        await until_output(client, b"one\n")
        assert not following.done()
        await asyncio.to_thread((tmp_path / "go").write_text, "two\n")
        assert payload(await following) == b"one\ntwo\n"


async def test_many_followers_all_get_everything(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await client.submit(a_job("seq 1 20000"))
        followers = [asyncio.create_task(followed(client)) for _ in range(10)]
        await client.run()
        outputs = {payload(frames) for frames in await asyncio.gather(*followers)}
    assert outputs == {b"".join(b"%d\n" % n for n in range(1, 20_001))}


async def test_an_attached_follower_is_waited_for_after_the_acknowledgement(tmp_path: Path) -> None:
    async with a_runner(tmp_path, Settings(linger=3600)) as (runner, client):
        await client.submit(a_job("seq 1 1000"))
        following = asyncio.create_task(followed(client))
        await client.run()
        record = await exit_of(client)
        await client.ack(record.log_end)
        frames = await following
        assert frames[-1].end == (await asyncio.wait_for(runner.until_over(), DEADLINE)).log_end


async def test_files_that_the_job_has_changed_end_the_follower_with_an_error(
    tmp_path: Path,
) -> None:
    async with a_runner(tmp_path) as (_, client):
        await run_job(client, a_job("echo hello"))
        (segment,) = await asyncio.to_thread(lambda: list((tmp_path / "task/logs").glob("*.seg")))
        await asyncio.to_thread(segment.write_bytes, b"")
        with pytest.raises(RunnerError) as follower:
            await followed(client)
        with pytest.raises(RunnerError) as page:
            await client.logs(0)
    assert (follower.value.code, page.value.code) == ("log_damaged", "log_damaged")


async def test_a_pipe_in_place_of_a_segment_does_not_hold_the_runner_up(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        logs = tmp_path / "task/logs"
        await run_job(client, a_job(f"mkfifo {logs}/{0:020d}.seg; echo hello"))
        frames = await followed(client)
    assert [(f.stream, f.offset, f.end) for f in frames] == [(Stream.MARKER, 0, len("hello\n"))]


async def test_a_log_is_followed_from_its_beginning_on_one_connection(tmp_path: Path) -> None:
    dialled = list[asyncio.Protocol]()
    async with a_runner(tmp_path) as (_, client), a_session(tmp_path / "runner.sock") as session:
        dial = dial_to(tmp_path / "runner.sock")

        async def dial_and_note(make: Callable[[], asyncio.Protocol]) -> None:
            dialled.append(made := make())
            await dial(lambda: made)

        following = asyncio.create_task(followed(RunnerClient(session, dial_answer=dial_and_note)))
        await client.submit(a_job("echo one; seq 1 100000"))
        await client.run()
        frames = await following
    assert payload(frames) == b"one\n" + b"".join(b"%d\n" % n for n in range(1, 100_001))
    assert len(dialled) == 1


async def test_an_offset_after_the_end_is_refused(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        with pytest.raises(RunnerError) as page:
            await client.logs(1)
        with pytest.raises(RunnerError) as follower:
            await followed(client, 1)
    assert (page.value.status, page.value.field) == (400, "offset")
    assert follower.value.status == 400


async def test_a_page_waits_for_output(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        waiting = asyncio.create_task(client.logs(0, wait=30))
        await client.submit(a_job("echo hi"))
        await client.run()
        page = await asyncio.wait_for(waiting, DEADLINE)
    assert payload(frames_of(page.frames)) == b"hi\n"


async def test_the_status_stream_shows_life_while_nothing_happens(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "task", scope=SessionScope(), children=Children())
    async with asyncio.timeout(DEADLINE):
        events = runner.status.follow(0, heartbeat=0.01)
        first, beat = await anext(events), await anext(events)
        await events.aclose()  # type: ignore[attr-defined]
    await runner.close()
    assert first == beat
    assert first.state is RunnerState.WAITING_FOR_JOB


async def test_a_follower_of_the_status_chooses_how_often_it_hears(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "task", scope=SessionScope(), children=Children())
    path = tmp_path / "runner.sock"
    async with (
        served(runner, path, Peers.ANY),
        a_session(path) as session,
        asyncio.timeout(DEADLINE),
        session.get("/v1/status", params={"heartbeat": "1"}) as answer,
    ):
        first, beat = await answer.content.readline(), await answer.content.readline()
    await runner.close()
    assert first == beat


class TestUnavailable:
    async def test_a_runner_that_is_not_there(self, tmp_path: Path) -> None:
        async with a_session(tmp_path / "runner.sock") as session:
            path = tmp_path / "runner.sock"
            client = RunnerClient(session, dial_answer=dial_to(path))
            with pytest.raises(RunnerUnavailable):
                await client.health()
            with pytest.raises(RunnerUnavailable):
                await followed(client)
            with pytest.raises(RunnerUnavailable):
                await anext(client.status_events())


async def raw(
    session: aiohttp.ClientSession, method: str, path: str, body: str
) -> tuple[int, dict[str, str | None]]:
    async with session.request(method, path, data=body) as response:
        return response.status, (await response.json())["error"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "field"),
    [
        ("POST", "/v1/submit", "{", 400, None),
        ("POST", "/v1/submit", "{}", 400, "job"),
        ("POST", "/v1/submit", '{"job": {}}', 400, "job.run_id"),
        ("GET", "/v1/logs/ws", "", 400, None),
        ("POST", "/v1/submit", '{"job": {"run_id": 1}}', 400, "job.run_id"),
        ("GET", "/v1/logs?offset=x", "", 400, "offset"),
        ("GET", "/v1/status?after=-1", "", 400, "after"),
        ("POST", "/v1/stop", '{"grace": -1}', 400, "grace"),
        ("GET", "/v1/nothing", "", 404, None),
        ("DELETE", "/v1/health", "", 405, None),
    ],
)
async def test_every_error_has_the_one_shape(
    tmp_path: Path, method: str, path: str, body: str, status: int, field: str | None
) -> None:
    async with a_runner(tmp_path), a_session(tmp_path / "runner.sock") as session:
        got, error = await raw(session, method, path, body)
    assert (got, error["field"]) == (status, field)
    assert error["code"]
    assert error["message"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
async def test_a_body_with_an_encoding_is_no_failure_of_the_runner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, encoding: str
) -> None:
    headers = {"Content-Encoding": encoding}
    async with (
        a_runner(tmp_path),
        a_session(tmp_path / "runner.sock") as session,
        session.post("/v1/submit", data=b"x" * 99, headers=headers) as response,
    ):
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (400, "invalid")
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"entrypoint": ["x"]}, "job.entrypoint"),
        ({"max_duration": 0}, "job.max_duration"),
        ({"stop_signal": "SIGFOO"}, "job.stop_signal"),
        ({"env": {"A=B": "c"}}, "job.env"),
        ({"env": {"A": "\0"}}, "job.env"),
        ({"repos": (Repo(path="r", url="--upload-pack=sh"),)}, "job.repos[0].url"),
        ({"repos": (Repo(path="r", url="u", branch="-x"),)}, "job.repos[0].branch"),
        ({"repos": (Repo(path="r", url="u", commit="-x"),)}, "job.repos[0].commit"),
        ({"repos": (Repo(path="r", archive="a" * 64, diff="b" * 64),)}, "job.repos[0].diff"),
    ],
)
async def test_an_impossible_job_is_refused_naming_its_field(
    tmp_path: Path, fields: dict[str, object], field: str
) -> None:
    async with a_runner(tmp_path) as (_, client):
        with pytest.raises(RunnerError) as caught:
            await client.submit(a_job("true", **fields))  # type: ignore[arg-type]
        assert (await client.health()).state is RunnerState.WAITING_FOR_JOB
    assert (caught.value.status, caught.value.field) == (400, field)
