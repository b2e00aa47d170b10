"""SSH into a task: the port, and the embedded server behind it, by a real client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncssh
import msgspec
import psutil
import pytest

from entrypoint.ssh.port import SshPort
from entrypoint.ssh.server import Visitors, serve
from entrypoint.ssh.settings import HOST_KEY_NAME, SETTINGS_NAME, Mode, SshSettings
from runner.options import UMASK
from runner.processes import session_environment
from runner.processes.spawn import Children
from tests.support.ssh_daemon import free_port
from tests.support.waiting import LONG, eventually

DEADLINE = LONG
MEGABYTE = 1 << 20


class Task:
    """A task's folder with SSH asked for, and the one client that may come in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.host_key.write_private_key(folder / HOST_KEY_NAME)
        self.write()

    def write(self, **changes: Any) -> None:
        settings = SshSettings(
            address="127.0.0.1",
            port=self.port,
            authorized_keys=(self.key.export_public_key().decode().strip(),),
            mode=Mode.EMBEDDED,
        )
        changed = msgspec.structs.replace(settings, **changes)
        (self.folder / SETTINGS_NAME).write_bytes(msgspec.json.encode(changed))

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        port = SshPort(self.folder, Children())
        port.open()
        try:
            yield
        finally:
            await port.close()

    async def connect(self, **options: Any) -> asyncssh.SSHClientConnection:
        return await asyncssh.connect(
            "127.0.0.1",
            self.port,
            **{
                "username": "root",
                "client_keys": [self.key],
                "known_hosts": ([self.host_key.convert_to_public()], [], []),
                "config": None,
                "agent_path": None,
                **options,
            },
        )

    @contextlib.asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[asyncssh.SSHClientConnection]:
        async with (
            asyncio.timeout(DEADLINE),
            self.listening(),
            await self.connect(**options) as made,
        ):
            yield made


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(tmp_path)


async def test_a_command_gets_its_input_and_gives_output_errors_and_status(task: Task) -> None:
    async with task.client() as connection:
        done = await connection.run("cat; echo oops >&2; exit 7", input="hello\n")
    assert (done.stdout, done.stderr, done.exit_status) == ("hello\n", "oops\n", 7)


async def test_a_session_has_its_jobs_environment_from_when_the_job_began(task: Task) -> None:
    ask = "echo $DATA,$FAIRLEAD_RUN_NAME,$USER"
    async with task.client() as connection:
        before = await connection.run(ask)
        told = {"DATA": "/data", "FAIRLEAD_RUN_NAME": "fair-wind", "USER": "nobody-else"}
        await asyncio.to_thread(session_environment.write, task.folder, told)
        after = await connection.run(ask)
        await asyncio.to_thread(session_environment.remove, task.folder)
    assert (before.stdout, after.stdout) == (",,root\n", "/data,fair-wind,root\n")


async def test_output_is_complete_however_much_there_is(task: Task) -> None:
    async with task.client() as connection:
        done = await connection.run("head -c 30000000 /dev/zero", encoding=None)
    assert isinstance(done.stdout, bytes)
    assert len(done.stdout) == 30_000_000


async def test_input_is_complete_however_late_it_is_taken(task: Task, tmp_path: Path) -> None:
    """More than a pipe holds, and its end is there before the program looks at it."""
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done"
    async with (
        task.client() as connection,
        connection.create_process(f"{wait}; wc -c", encoding=None) as late,
    ):
        late.stdin.write(bytes(100_000))
        late.stdin.write_eof()
        await connection.run(f"touch {tmp_path}/go")
        counted = await late.stdout.read()
    assert int(counted) == 100_000


async def test_input_that_nobody_takes_holds_no_session_up(task: Task) -> None:
    async with task.client() as connection:
        done = await connection.run("exec true", input=bytes(MEGABYTE), encoding=None)
    assert done.exit_status == 0


async def test_a_command_ended_by_a_signal_says_which(task: Task) -> None:
    async with task.client() as connection:
        done = await connection.run("kill -TERM $$")
    assert done.exit_signal is not None
    assert done.exit_signal[0] == "TERM"


async def test_a_shell_in_a_terminal_knows_its_size_and_owns_it(task: Task) -> None:
    script = "stty size; tty; ps -o tpgid= -p $$; exit 3\n"
    async with task.client() as connection:
        done = await connection.run(
            script.strip(), term_type="xterm", term_size=(101, 33), encoding="utf-8"
        )
    lines = str(done.stdout).split("\r\n")
    assert lines[0] == "33 101"
    assert lines[1].startswith("/dev/pts/")
    assert int(lines[2]) > 0
    assert done.exit_status == 3


async def test_a_terminal_gives_all_that_was_written_before_the_end(task: Task) -> None:
    async with task.client() as connection:
        done = await connection.run("seq 1 100000", term_type="xterm")
    assert str(done.stdout).endswith("\r\n99999\r\n100000\r\n")


async def test_a_terminal_is_resized_and_interrupted_from_the_keyboard(task: Task) -> None:
    command = "trap 'stty size; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    async with task.client() as connection:
        process = await connection.create_process(command, term_type="xterm", term_size=(80, 24))
        await process.stdout.readuntil("ready\r\n")
        process.change_terminal_size(132, 50)
        process.stdin.write("\x03")
        done = await process.wait()
    assert "50 132" in str(done.stdout)
    assert done.exit_status == 5


async def test_closing_a_terminal_hangs_up_what_runs_in_it(task: Task, tmp_path: Path) -> None:
    marker = tmp_path / "hung-up"
    command = f"trap 'touch {marker}; exit' HUP; echo ready; while :; do sleep 0.05; done"
    async with asyncio.timeout(DEADLINE), task.listening():
        connection = await task.connect()
        process = await connection.create_process(command, term_type="xterm")
        await process.stdout.readuntil("ready\r\n")
        connection.close()
        await connection.wait_closed()
        await eventually(marker.exists)
    assert marker.exists()


async def test_files_travel_by_sftp_and_scp_and_scp_ends_with_a_status(
    task: Task, tmp_path: Path
) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    here = tmp_path / "here"
    here.write_bytes(os.urandom(3 * MEGABYTE))
    async with task.client() as connection:
        async with connection.start_sftp_client() as sftp:
            await sftp.put(str(here), str(there))
        await asyncssh.scp((connection, str(there)), str(back))
        with pytest.raises(asyncssh.SFTPError):
            await asyncssh.scp((connection, str(tmp_path / "missing")), str(back))
    assert back.read_bytes() == here.read_bytes()


async def test_a_visitors_files_have_the_usual_rights_and_not_the_runners(
    task: Task, tmp_path: Path
) -> None:
    here, there, folder = tmp_path / "here", tmp_path / "there", tmp_path / "folder"
    here.touch()
    before = os.umask(UMASK)
    try:
        async with task.client() as connection, connection.start_sftp_client() as sftp:
            await sftp.put(str(here), str(there))
            await sftp.mkdir(str(folder))
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (there, folder)] == [0o644, 0o755]


async def test_ports_and_sockets_are_forwarded_in_both_directions(
    task: Task, tmp_path: Path
) -> None:
    async with echo_server() as port, task.client() as connection:
        listeners = [
            await connection.forward_local_port("127.0.0.1", 0, "127.0.0.1", port),
            await connection.forward_remote_port("127.0.0.1", 0, "127.0.0.1", port),
            await connection.forward_socks("127.0.0.1", 0),
        ]
        local, remote, socks = (listener.get_port() for listener in listeners)
        await connection.forward_local_path_to_port(str(tmp_path / "l.sock"), "127.0.0.1", port)
        assert await echoed(local, b"local") == b"local"
        assert await echoed(remote, b"remote") == b"remote"
        assert await echoed(socks, b"dynamic", socks_to=port) == b"dynamic"
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "l.sock"))
        assert await ask(reader, writer, b"unix") == b"unix"


@contextlib.asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def echoed(port: int, data: bytes, socks_to: int | None = None) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if socks_to is not None:
        writer.write(b"\x05\x01\x00")
        assert await reader.readexactly(2) == b"\x05\x00"
        writer.write(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + socks_to.to_bytes(2, "big"))
        assert (await reader.readexactly(10))[1] == 0
    return await ask(reader, writer, data)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    writer.write_eof()
    answer = await reader.read(len(data))
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_visitors_agent_is_reached_from_inside(task: Task, tmp_path: Path) -> None:
    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(9))
        writer.close()

    ask_agent = (
        "import os, socket; s = socket.socket(socket.AF_UNIX);"
        "s.connect(os.environ['SSH_AUTH_SOCK']); s.send(b'signature');"
        "print(s.recv(9).decode())"
    )
    path = tmp_path / "agent"
    async with (
        await asyncio.start_unix_server(agent, path),
        task.client(agent_forwarding=str(path)) as connection,
    ):
        done = await connection.run(f'{sys.executable} -c "{ask_agent}"')
    assert (done.stdout, done.stderr) == ("signature\n", "")


async def test_other_keys_passwords_and_users_are_refused(task: Task) -> None:
    stranger = asyncssh.generate_private_key("ssh-ed25519")
    async with asyncio.timeout(DEADLINE), task.listening():
        with pytest.raises(asyncssh.PermissionDenied):
            await task.connect(client_keys=[stranger])
        with pytest.raises(asyncssh.PermissionDenied):
            await task.connect(client_keys=[], password="root")


async def test_the_server_starts_with_the_first_visitor_and_is_replaced_when_dead(
    task: Task,
) -> None:
    # A fixture of the session may have a process of its own here.
    others = children()
    async with asyncio.timeout(DEADLINE * 2), task.listening():
        assert children() == others
        async with await task.connect() as connection:
            assert (await connection.run("true")).exit_status == 0
            [server] = children() - others
            os.kill(server, 9)
        async with await task.connect() as connection:
            assert (await connection.run("true")).exit_status == 0
            [again] = children() - others
        assert again != server


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


async def test_a_task_without_ssh_has_no_door(task: Task) -> None:
    (task.folder / SETTINGS_NAME).unlink()
    async with task.listening():
        with pytest.raises(OSError, match="Connect call failed"):
            await task.connect()


async def test_an_install_that_fails_is_told_to_visitors_who_get_in_nevertheless(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entrypoint.ssh.install._MANAGERS", {})
    monkeypatch.setattr("entrypoint.ssh.openssh.find", lambda: None)
    task.write(mode=Mode.INSTALL)
    told: list[str] = []

    class Client(asyncssh.SSHClient):
        def auth_banner_received(self, msg: str, lang: str) -> None:
            told.append(msg)

    async with task.client(client_factory=Client) as connection:
        done = await connection.run("echo in")
    assert done.stdout == "in\n"
    assert "no package manager" in told[0]


async def test_a_server_without_visitors_ends_by_itself_and_is_woken_again(
    task: Task,
) -> None:
    with socket.create_server(("127.0.0.1", task.port)) as listener:
        listener.setblocking(False)
        async with asyncio.timeout(DEADLINE):
            await serve(task.folder, listener, idle=0.01)
    async with task.client() as connection:
        assert (await connection.run("true")).exit_status == 0


async def test_more_connections_than_anybody_needs_are_cut_and_the_rest_go_on(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entrypoint.ssh.server.MAX_CONNECTIONS", 2)
    listener = socket.create_server(("127.0.0.1", task.port))
    listener.setblocking(False)
    serving = asyncio.create_task(serve(task.folder, listener))
    async with asyncio.timeout(DEADLINE):
        async with await task.connect() as first, await task.connect():
            with pytest.raises((asyncssh.Error, OSError)):
                await task.connect()
            assert (await first.run("true")).exit_status == 0
        signal.raise_signal(signal.SIGTERM)
        await serving
    listener.close()


async def test_the_server_is_idle_once_all_have_left_also_those_that_were_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("entrypoint.ssh.server.MAX_CONNECTIONS", 2)
    visitors = Visitors(idle_seconds=0.01)
    assert [visitors.came() for _ in range(3)] == [True, True, False]
    for _ in range(3):
        assert not visitors.gone.is_set()
        visitors.left()
    async with asyncio.timeout(DEADLINE):
        await visitors.gone.wait()
