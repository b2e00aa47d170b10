"""Terminals by the API: an SSH server of this machine stands for the job's."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncssh
import pytest
from aiohttp import WSMsgType
from aiohttp.test_utils import TestClient

from common.links.host_keys import public_line
from controller.lifecycle.reports import TaskSeen
from controller.pipelines.performers.cluster import cluster_key, terminal_key
from controller.service.jobs import terminals
from tests.doubles.proxy import NodeHere
from tests.support.ssh_daemon import free_port
from tests.support.terminals import shown
from tests.support.waiting import eventually
from tests.unit.api.asking import HELLO, error_of
from tests.unit.api.conftest import HOST_KEY, USER_TOKEN, Controller
from tests.unit.cli.conftest import PlayedNode

TERMINAL = "/v1/runs/hello/terminal"


class JobsSsh:
    """The SSH server of a job. Its shell tells its user and size, then each line and each new
    size."""

    def __init__(self) -> None:
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.port = free_port()
        self.shells = 0

    async def shell(self, process: asyncssh.SSHServerProcess[str]) -> None:
        self.shells += 1
        try:
            name = process.get_extra_info("username")
            process.stdout.write(f"{name} {process.term_size[:2]}\n")
            while True:
                try:
                    line = await process.stdin.readline()
                except asyncssh.TerminalSizeChanged as size:
                    process.stdout.write(f"now {size.width} {size.height}\n")
                    continue
                if line.strip() == "exit":
                    process.exit(3)
                if not line or line.strip() == "exit":
                    return
                process.stdout.write(f"typed {line}")
        finally:
            self.shells -= 1


@pytest.fixture
async def job(
    api: TestClient[Any, Any], controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[JobsSsh]:
    """A run `hello` whose job runs and lets the controller in."""
    server = JobsSsh()
    monkeypatch.setattr(terminals, "CLUSTER_SSH_PORT", free_port())
    body = {"configuration": HELLO, "name": "hello", "ssh_keys": [HOST_KEY]}
    async with api.post("/v1/runs", json=body) as answer:
        run = await answer.json()
    await PlayedNode(controller).runs("hello")
    seen = TaskSeen(
        run_id=run["id"],
        attempt_id=run["jobs"][0]["attempts"][0]["id"],
        container_started=True,
        terminated=False,
        runner_socket="/run/fairlead/runner.sock",
        ports={"ssh": server.port},
        ssh_host_key=public_line(server.host_key),
    )
    await controller.pipeline.report(seen)
    controller.connections["n1"] = await NodeHere().connect("n1")
    key = asyncssh.import_authorized_keys(terminal_key(b"", run["id"]).public)
    async with asyncssh.listen(
        "127.0.0.1",
        server.port,
        server_host_keys=[server.host_key],
        authorized_client_keys=key,
        process_factory=server.shell,
        line_editor=False,
    ):
        yield server
        await eventually(lambda: server.shells == 0)


async def test_a_shell_takes_what_is_typed_and_shows_its_output(
    api: TestClient[Any, Any], job: JobsSsh
) -> None:
    async with api.ws_connect(f"{TERMINAL}?columns=100&rows=30&login=anna") as socket:
        await shown(socket, "anna (100, 30)")
        await socket.send_bytes(b"hello\n")
        await shown(socket, "typed hello")
        await socket.send_json({"columns": 120, "rows": 40})
        await shown(socket, "now 120 40")
        await socket.send_bytes(b"exit\n")
        assert await socket.receive_json() == {"exit": 3}
        assert (await socket.receive()).type is WSMsgType.CLOSE


async def test_nothing_is_left_when_the_page_closes(
    api: TestClient[Any, Any], job: JobsSsh
) -> None:
    async with api.ws_connect(TERMINAL) as socket:
        await shown(socket, "root")
        assert job.shells == 1
    await eventually(lambda: job.shells == 0)


async def test_a_quiet_terminal_ends(
    api: TestClient[Any, Any], job: JobsSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.api.jobs.terminals.IDLE_SECONDS", 1.0)
    async with api.ws_connect(TERMINAL) as socket:
        await shown(socket, "root")
        assert "nothing happened" in (await socket.receive_json())["error"]


async def test_a_server_with_another_host_key_gets_no_login(
    api: TestClient[Any, Any], job: JobsSsh, controller: Controller
) -> None:
    (state,) = controller.pipeline.runs.values()
    other = TaskSeen(
        run_id=state.run.id,
        attempt_id=state.jobs[0].attempts[0].id,
        container_started=True,
        terminated=False,
        runner_socket="/run/fairlead/runner.sock",
        ports={"ssh": job.port},
        ssh_host_key=HOST_KEY,
    )
    await controller.pipeline.report(other)
    async with api.ws_connect(TERMINAL) as socket:
        error = (await socket.receive_json())["error"]
    assert "Host key is not trusted" in error


async def test_one_user_opens_so_many_terminals_and_no_more(
    api: TestClient[Any, Any], job: JobsSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminals, "MAX_OF_ONE_USER", 1)
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(api.ws_connect(TERMINAL))
        await shown(first, "root")
        second = await stack.enter_async_context(api.ws_connect(TERMINAL))
        assert "1 terminals of admin" in (await second.receive_json())["error"]


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({"Origin": "https://elsewhere.example"}, (403, "other_origin", None)),
        ({"Origin": "http://["}, (403, "other_origin", None)),
        ({"Authorization": f"Bearer {USER_TOKEN}"}, (404, "not_found", "run")),
    ],
)
async def test_other_origins_and_other_users_are_refused(
    api: TestClient[Any, Any],
    job: JobsSsh,
    headers: dict[str, str],
    refused: tuple[int, str, str | None],
) -> None:
    async with api.get(TERMINAL, headers=headers) as answer:
        assert await error_of(answer) == refused


async def test_a_page_of_this_origin_may_open_a_terminal(
    api: TestClient[Any, Any], job: JobsSsh
) -> None:
    origin = str(api.make_url("/")).rstrip("/")
    async with api.ws_connect(TERMINAL, headers={"Origin": origin}) as socket:
        await shown(socket, "root")
        assert job.shells == 1


async def test_a_job_without_ssh_says_what_to_do(
    api: TestClient[Any, Any], controller: Controller
) -> None:
    async with api.post("/v1/runs", json={"configuration": HELLO, "name": "hello"}) as answer:
        assert answer.status == 201
    async with api.get(TERMINAL) as answer:
        assert await error_of(answer) == (409, "not_running", None)
    await PlayedNode(controller).runs("hello")
    async with api.get(TERMINAL) as answer:
        assert (await error_of(answer))[:2] == (409, "no_ssh")


def test_the_key_of_terminals_is_no_key_of_the_cluster() -> None:
    assert terminal_key(b"s", "r").public != cluster_key(b"s", "r").public
    assert terminal_key(b"s", "r").public != terminal_key(b"s", "q").public
