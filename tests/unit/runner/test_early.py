"""What the runner does before it is loaded, and that nobody can tell from what it says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from runner.client import RunnerClient, RunnerError
from runner.early import Early
from runner.head_start import HeadStart
from runner.job.outcome import SessionScope
from runner.job.spawning import Children
from runner.options import Options
from runner.runner import Runner
from runner.schemas import (
    EXIT_RECORD_NAME,
    ClusterInfo,
    ExitRecord,
    RunnerState,
    StatusEvent,
    SubmitRequest,
)
from runner.server import serve, served
from runner.sockets import Peers, listen
from tests.unit.runner.by_hand import FIRST_PAGE, Answer, answer_at, post, start_of, visitor_at
from tests.unit.runner.harness import (
    DEADLINE,
    a_job,
    a_runner,
    a_session,
    exit_of,
    followed,
    frames_of,
    payload,
)

SLEEP = "exec sleep 3600"


Ask = Callable[[bytes], Awaitable[Answer]]


class Door:
    """An early runner, turned by hand."""

    def __init__(self, folder: Path, peers: Peers = Peers.ANY) -> None:
        self.task = folder / "task"
        self.task.mkdir()
        self.socket = folder / "runner.sock"
        self.children = Children()
        self.options = Options(task=self.task, socket=self.socket, peers=peers)
        self.early = Early(listen(self.socket), self.options, self.children)
        self._visitors: list[socket.socket] = []
        self._taken_over = False

    @property
    def begun(self) -> HeadStart | None:
        return self.early.leave().head_start

    def visitor(self, said: bytes) -> socket.socket:
        visitor = visitor_at(self.socket, said)
        self._visitors.append(visitor)
        return visitor

    def asked(self, said: bytes) -> Answer:
        return self.heard(self.visitor(said))

    def heard(self, visitor: socket.socket) -> Answer:
        self.early.turn()
        while not select.select([visitor], [], [], 0.005)[0]:
            self.early.turn()
        return answer_at(visitor)

    def begin(self, request: SubmitRequest) -> HeadStart:
        self.asked(start_of(request))
        assert self.begun is not None
        return self.begun

    def unread(self) -> list[bytes]:
        """What lies before the runner that comes later."""
        return [peeked(visitor) for visitor in self.early.leave().visitors]

    @contextlib.asynccontextmanager
    async def whole(self) -> AsyncIterator[RunnerClient]:
        """The runner that takes over."""
        left, scope = self.early.leave(), SessionScope()
        self._taken_over = True
        runner = Runner(self.task, scope=scope, children=self.children, head_start=left.head_start)
        try:
            async with served(runner, self.socket, Peers.ANY, left=left):
                async with a_session(self.socket) as session:
                    yield RunnerClient(session)
                await runner.close()
        finally:
            await runner.close()

    def close(self) -> None:
        for visitor in self._visitors:
            visitor.close()
        if not self._taken_over:
            self._give_up()

    def _give_up(self) -> None:
        left = self.early.leave()
        for connection in (*left.visitors, left.listener):
            connection.close()
        if left.head_start is not None:
            job = left.head_start
            os.killpg(job.spawned.pid, signal.SIGKILL)
            os.waitpid(job.spawned.pid, 0)
            for pipe in job.output.open:
                job.output.close(pipe)
            job.log.close()
            job.groundwork.clean()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made = Door(tmp_path)
    yield made
    made.close()


def peeked(visitor: socket.socket) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return visitor.recv(1 << 20, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return b""


# -- as the whole runner does it -----------------------------------------------------------------


@pytest.fixture(params=["early", "whole"])
async def ask(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ask]:
    if request.param == "early":
        door = Door(tmp_path)

        async def ask_early(said: bytes) -> Answer:
            return door.asked(said)

        yield ask_early
        door.close()
        return

    async def ask_whole(said: bytes) -> Answer:
        with visitor_at(tmp_path / "runner.sock", said) as visitor:
            return await asyncio.to_thread(answer_at, visitor)

    async with a_runner(tmp_path):
        yield ask_whole


async def test_a_start_is_answered_with_the_state(ask: Ask) -> None:
    answer = await ask(start_of(a_job(SLEEP)))
    assert answer.status == "HTTP/1.1 200 OK"
    assert answer.headers["Content-Type"] == "application/json"
    event = msgspec.json.decode(answer.body, type=StatusEvent)
    assert event.seq > 2
    assert event.exit is None


async def test_the_first_page_is_what_the_job_said_first(ask: Ask) -> None:
    await ask(start_of(a_job("echo hello", SLEEP)))
    answer = await ask(FIRST_PAGE)
    assert answer.status == "HTTP/1.1 200 OK"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Fairlead-Log-Complete"] == "false"
    assert answer.headers["Fairlead-Log-End"] == "6"
    assert payload(frames_of(answer.body)) == b"hello\n"


async def test_a_connection_may_ask_again(ask: Ask) -> None:
    await ask(start_of(a_job("echo hello", SLEEP)))
    first, second = await ask(FIRST_PAGE), await ask(FIRST_PAGE)
    assert first.body == second.body


# -- what it does ----------------------------------------------------------------------------


def test_the_job_runs_when_the_start_is_answered(door: Door) -> None:
    answer = door.asked(start_of(a_job("echo hello", SLEEP)))
    event = msgspec.json.decode(answer.body, type=StatusEvent)
    assert door.begun is not None
    assert (event.state, event.pid) == (RunnerState.RUNNING, door.begun.spawned.pid)


def test_who_asks_for_the_first_page_before_there_is_a_job_waits_for_it(door: Door) -> None:
    reader = door.visitor(FIRST_PAGE)
    door.early.turn()
    door.begin(a_job("echo hello", SLEEP))
    assert payload(frames_of(door.heard(reader).body)) == b"hello\n"


def test_a_request_that_comes_in_pieces_is_answered_when_it_is_whole(door: Door) -> None:
    said = start_of(a_job(SLEEP))
    visitor = door.visitor(said[:40])
    door.early.turn()
    visitor.sendall(said[40:-1])
    door.early.turn()
    assert door.begun is None
    visitor.sendall(said[-1:])
    assert door.heard(visitor).status == "HTTP/1.1 200 OK"


def test_only_so_much_is_taken_from_the_job_before_the_runner_is_whole(door: Door) -> None:
    job = door.begin(a_job("head -c 3000000 /dev/zero", SLEEP))
    while job.log.end < 64 << 10:
        door.early.turn()
    taken = job.log.end
    for _ in range(50):
        door.early.turn()
    assert job.log.end == taken < 512 << 10


# -- what it leaves --------------------------------------------------------------------------

JOB = msgspec.json.encode(a_job("true"))


@pytest.mark.parametrize(
    "said",
    [
        b"GET /v1/health HTTP/1.1\r\nHost: runner\r\n\r\n",
        b"GET /v1/logs?offset=1&wait=20 HTTP/1.1\r\n\r\n",
        b"GET /v1/logs?offset=0 HTTP/1.1\r\n\r\n",
        b"GET /v1/logs?offset=0&wait=0 HTTP/1.1\r\n\r\n",
        b"GET /v1/logs/ws?offset=0 HTTP/1.1\r\nUpgrade: websocket\r\n\r\n",
        b"CONNECT /v1/ports/80 HTTP/1.1\r\n\r\n",
        b"GET /v1/logs?offset=0&wait=20 HTTP/1.0\r\n\r\n",
        b"\x00\xff garbage\r\n\r\n",
        FIRST_PAGE + FIRST_PAGE,
        post("/v1/submit", JOB),
        post("/v1/start", JOB) + b"GET",
        post("/v1/start", JOB, "Expect: 100-continue"),
        post("/v1/start", JOB, "Connection: close"),
        post("/v1/start", JOB, "Content-Length: 3"),
        post("/v1/start", b"not JSON"),
        post("/v1/start", b"{}"),
        b"POST /v1/start HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/start HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n{",
        b"POST /v1/start HTTP/1.1\r\nContent-Length: -1\r\n\r\n{",
        b"POST /v1/start HTTP/1.1\r\nno colon\r\n\r\n",
        b"X" * (64 << 10),
    ],
)
def test_what_it_is_not_sure_of_it_does_not_touch(door: Door, said: bytes) -> None:
    door.visitor(said)
    for _ in range(3):
        door.early.turn()
    assert door.unread() == [said]
    assert door.begun is None


UNSUITABLE = {
    "a terminal": a_job("true", tty=True),
    "a repository": a_job("true", repos=[{"path": "r", "archive": "a" * 64}]),
    "files": a_job("true", files=[{"path": "f", "archive": "a" * 64}]),
    "a gang": a_job("true", job_count=2),
    "a bad spec": a_job("true", max_duration=-1.0),
    "an unknown user": a_job("true", user="nobody-knows-me"),
    "an unknown program": a_job(entrypoint=["/no/such/program"]),
    "a program that is none": a_job(entrypoint=["/etc/passwd"]),
    "gpus that do not match": SubmitRequest(
        job=a_job("true").job, cluster=ClusterInfo(ips=("10.0.0.1",), gpus=(1, 2))
    ),
}


@pytest.mark.parametrize("request_", UNSUITABLE.values(), ids=UNSUITABLE)
def test_a_job_that_is_not_simple_waits_for_the_whole_runner(
    door: Door, request_: SubmitRequest
) -> None:
    door.visitor(start_of(request_))
    door.early.turn()
    assert door.unread() == [start_of(request_)]
    assert door.begun is None


def test_a_task_whose_job_has_ended_begins_nothing(door: Door) -> None:
    record = ExitRecord(reason="done_by_runner", exit_code=0, finished_at=1.0, log_end=0)
    (door.task / EXIT_RECORD_NAME).write_bytes(msgspec.json.encode(record))
    door.visitor(start_of(a_job("true")))
    door.early.turn()
    assert door.begun is None


def test_a_second_start_is_for_the_whole_runner(door: Door) -> None:
    first = door.begin(a_job(SLEEP))
    again = start_of(a_job("echo other"))
    door.visitor(again)
    door.early.turn()
    assert door.begun is first
    assert door.unread() == [b"", again]


def test_a_process_of_the_container_is_cut_off_unheard(tmp_path: Path) -> None:
    door = Door(tmp_path, Peers.NODE)
    visitor = door.visitor(start_of(a_job(SLEEP)))
    door.early.turn()
    with pytest.raises(ConnectionResetError):
        visitor.recv(1)
    assert door.begun is None
    door.close()


def test_who_leaves_before_the_answer_is_no_harm(door: Door) -> None:
    reader = door.visitor(FIRST_PAGE)
    door.early.turn()
    reader.close()
    job = door.begin(a_job("echo hello", SLEEP))
    while not job.log.end:
        door.early.turn()
    assert payload(frames_of(door.asked(FIRST_PAGE).body)) == b"hello\n"


# -- who takes over ---------------------------------------------------------------------------


async def test_the_whole_runner_goes_on_where_the_early_one_was(door: Door, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    said = ("echo one", f"read -r _ < {go}", "echo two; echo three >&2; exit 7")
    reader = door.visitor(FIRST_PAGE)
    door.begin(a_job(*said))
    first = payload(frames_of(door.heard(reader).body))
    async with door.whole() as client:
        await asyncio.to_thread(go.write_text, "\n")
        record = await exit_of(client)
        frames = await followed(client)
        states = []
        async with contextlib.aclosing(client.status_events()) as events:
            while "serving_logs" not in states:
                states.append((await anext(events)).state)
    assert first == b"one\n"
    assert payload(frames[:1]) == b"one\n"
    assert sorted(payload(frames).split()) == [b"one", b"three", b"two"]
    assert (record.reason, record.exit_code) == ("container_exited_with_error", 7)
    assert record.message == "exited with code 7: three"
    assert states == ["waiting_for_job", "ready", "preparing", "running", "serving_logs"]


async def test_a_job_that_ended_meanwhile_keeps_its_code_and_words(door: Door) -> None:
    job = door.begin(a_job("echo hello; exit 3"))
    await asyncio.to_thread(os.waitid, os.P_PID, job.spawned.pid, os.WEXITED | os.WNOWAIT)
    async with door.whole() as client:
        record = await exit_of(client)
        assert payload(await followed(client)) == b"hello\n"
    assert record.exit_code == 3


async def test_who_was_left_waiting_is_answered_by_the_whole_runner(
    door: Door, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    door.begin(a_job(f"read -r _ < {go}; echo hello", SLEEP))
    reader, asking = door.visitor(FIRST_PAGE), door.visitor(start_of(a_job("echo other")))
    door.early.turn()
    async with door.whole():
        await asyncio.to_thread(go.write_text, "\n")
        page = await asyncio.to_thread(answer_at, reader)
        refused = await asyncio.to_thread(answer_at, asking)
    assert payload(frames_of(page.body)) == b"hello\n"
    assert refused.status == "HTTP/1.1 409 Conflict"


async def test_the_same_job_is_not_started_twice(door: Door) -> None:
    request = a_job("echo once", SLEEP)
    job = door.begin(request)
    async with door.whole() as client:
        assert (await client.start(request)).pid == job.spawned.pid
        with pytest.raises(RunnerError, match="another job"):
            await client.start(a_job("echo other"))


async def test_a_secret_that_is_said_in_two_halves_is_hidden(door: Door, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    said = ("printf 'a:hunt'", f"read -r _ < {go}", "echo er2:b")
    job = door.begin(a_job(*said, secrets={"PASSWORD": "hunter2"}))
    while not job.log.end:
        door.early.turn()
    async with door.whole() as client:
        await asyncio.to_thread(go.write_text, "\n")
        await exit_of(client)
        assert payload(await followed(client)) == b"a:***:b\n"


async def test_nothing_of_the_secrets_is_left_after_the_end(door: Door) -> None:
    folder = door.begin(a_job("true", secrets={"PASSWORD": "hunter2"})).groundwork.scratch.folder
    assert folder.exists()
    async with door.whole() as client:
        await exit_of(client)
    assert not folder.exists()


async def test_a_stop_that_came_too_early_stops_the_job(door: Door) -> None:
    door.begin(a_job("trap 'echo bye; exit 9' TERM; echo ready; sleep 3600 & wait"))
    job = door.begun
    assert job is not None
    while not job.log.end:
        door.early.turn()
    door.early.ask_to_stop(signal.SIGTERM, None)
    door._taken_over = True
    status = await asyncio.wait_for(
        serve(door.options, door.children, SessionScope(), early=door.early), DEADLINE
    )
    assert status == 9
