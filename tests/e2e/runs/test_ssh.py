"""A user's own ssh, scp and sftp into jobs: through the node's sshd, host keys pinned, and no
further."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncssh
import psutil
import pytest

from tests.e2e.runs.visitor import Visitor, line_from, make_key
from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.processes import CommandResult
from tests.support.ssh_daemon import JUMP_USER, free_port
from tests.support.testbed import ControllerFactory, ShimFactory
from tests.support.waiting import LONG, wait_until

pytestmark = pytest.mark.e2e

MEGABYTE = 1 << 20


@pytest.fixture
def user(lab: RunLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Visitor:
    return Visitor.with_a_key(lab, tmp_path, monkeypatch)


def test_a_user_logs_in_and_gets_the_commands_output_and_status(lab: RunLab, user: Visitor) -> None:
    with user.run("visited"):
        done = lab.cli("ssh", "visited", "--", "sh", "-c", "echo $HOSTNAME $0; echo hm >&2; exit 7")
        again = lab.cli("ssh", "visited", "--", "cd /tmp && pwd")
    assert (done.status, done.output) == (7, "visited sh\n")
    assert "hm" in done.errors
    assert again.succeeded().output == "/tmp\n"


def test_another_user_of_the_image_gets_its_ids_and_owns_what_it_copies(
    user: Visitor, image_with_users: str, tmp_path: Path
) -> None:
    (tmp_path / "hers").write_text("hers")
    with user.run("users", image=image_with_users, commands=["sleep 3600"]):
        config = str(user.config("users", "--user", "anna"))
        ids = user.openssh("ssh", "-F", config, "users", "id -u; id -g; id -G; echo $USER")
        for options in ([], ["-O"]):
            target = f"users:/tmp/by{len(options)}"
            copied = user.openssh("scp", *options, "-F", config, str(tmp_path / "hers"), target)
            assert copied.returncode == 0
        owned = user.ssh("users", "users", "stat -c %u:%g /tmp/by0 /tmp/by1")
        unknown = user.openssh("ssh", "-F", config, "-l", "ben", "users", "id")
    assert ids.stdout.decode().split() == ["1234", "1235", "1235", "44", "anna"]
    assert owned.stdout == b"1234:1235\n1234:1235\n"
    assert b"Permission denied" in unknown.stderr


def test_scp_and_sftp_carry_files_both_ways(user: Visitor, tmp_path: Path) -> None:
    here, back, again = tmp_path / "here", tmp_path / "back", tmp_path / "again"
    here.write_bytes(os.urandom(3 * MEGABYTE))
    with user.run("files"):
        config = str(user.config("files"))
        statuses = [
            user.openssh("scp", "-F", config, str(here), "files:/tmp/there").returncode,
            user.openssh("scp", "-O", "-F", config, "files:/tmp/there", str(back)).returncode,
            user.openssh("sftp", "-F", config, "files:/tmp/there", str(again)).returncode,
            user.openssh("scp", "-O", "-F", config, "files:/tmp/missing", str(back)).returncode,
        ]
    assert statuses == [0, 0, 0, 1]
    assert here.read_bytes() == back.read_bytes() == again.read_bytes()


def test_cp_carries_files_and_folders_both_ways(lab: RunLab, user: Visitor, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "a").write_bytes(os.urandom(MEGABYTE))
    with user.run("copied"):
        lab.cli("cp", folder, "copied:/tmp/there").succeeded()
        lab.cli("cp", "copied:/tmp/there/a", tmp_path / "back").succeeded()
        missing = lab.cli("cp", "copied:/tmp/none", tmp_path / "none")
    assert (tmp_path / "back").read_bytes() == (folder / "a").read_bytes()
    assert (missing.status, "No such file" in missing.errors) == (1, True)


def test_a_shell_is_a_job_that_ends_when_it_is_left(lab: RunLab, user: Visitor) -> None:
    file = lab.write(commands=["exit 9"], env={"SEED": "7"})
    done = lab.cli("shell", "-f", file, "-n", "worked", "--", "sh", "-c", "echo $SEED; exit 3")
    assert (done.status, done.output) == (3, "7\n")
    assert lab.wait_for("worked")["status"] == "done"


def test_a_shell_whose_command_is_killed_ends_by_itself(lab: RunLab, user: Visitor) -> None:
    file = lab.write(commands=["exit 9"])
    with lab.controller.spawn_cli("shell", "-f", file, "-n", "left", "--", "sleep 3600") as command:
        assert command.stderr is not None
        assert command.stderr.readline() == b"fairlead: submitted left\n"
        lab.wait_for("left", "running")
        wait_until(lambda: "sleep 3600" in lab.inside("left", "ps"), what="the session")
        for child in psutil.Process(command.pid).children(recursive=True):
            child.kill()
        command.kill()
    assert lab.wait_for("left")["status"] == "done"


def test_ports_are_forwarded_in_all_three_ways(user: Visitor) -> None:
    """In the container `nc` answers each connection with one line."""
    answer = "while :; do echo inside | nc -l -p 8000; done &"
    local, remote, dynamic = free_port(), free_port(), free_port()
    with user.run("forwarding", commands=[answer, UNTIL_ASKED]), outside() as port:
        forwards = ["-L", f"{local}:127.0.0.1:8000", "-R", f"{remote}:127.0.0.1:{port}"]
        with user.connected("forwarding", *forwards, "-D", str(dynamic)):
            through_local = wait_until(lambda: line_from(local), what="the local forward")
            through_dynamic = wait_until(
                lambda: line_from(dynamic, socks_to=8000), what="the dynamic forward"
            )
            ask = f"nc 127.0.0.1 {remote} </dev/null"
            through_remote = user.ssh("forwarding", "forwarding", ask).stdout
    assert (through_local, through_dynamic) == (b"inside\n", b"inside\n")
    assert through_remote == b"outside\n"


@contextlib.contextmanager
def outside() -> Iterator[int]:
    """A server on this side that says `outside` to everybody."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        client.sendall(b"outside\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_an_editors_script_runs_beside_a_dynamic_forward(user: Visitor) -> None:
    """The first steps of VS Code's Remote-SSH: a shell without a terminal that reads a script, and
    a SOCKS port in the same connection."""
    script = b"uname -s; mkdir -p ~/.server && echo $? && exit 3\n"
    with user.run("editor"):
        done = user.ssh("editor", "-T", "-D", str(free_port()), "editor", "sh", stdin=script)
    assert (done.returncode, done.stdout) == (3, b"Linux\n0\n")


def test_a_terminal_is_a_real_one(user: Visitor) -> None:
    with user.run("terminal"):
        done = user.ssh("terminal", "-tt", "terminal", "tty; exit 4")
    assert (done.returncode, done.stdout) == (4, b"/dev/pts/0\r\n"), done.stderr


def test_another_host_key_than_the_published_one_is_refused(user: Visitor, tmp_path: Path) -> None:
    with user.run("pinned"):
        user.config("pinned")
        known = tmp_path / "state/fairlead/ssh/pinned.known_hosts"
        make_key(tmp_path / "other")
        other = (tmp_path / "other.pub").read_text().strip()
        lines = known.read_text().splitlines()
        for number, line in enumerate(lines):
            changed = [*lines]
            changed[number] = f"{line.split()[0]} {other}"
            known.write_text("\n".join(changed) + "\n")
            done = user.openssh("ssh", "-F", str(tmp_path / "pinned.config"), "pinned", "true")
            assert done.returncode == 255
            assert b"HOST IDENTIFICATION HAS CHANGED" in done.stderr
    assert len(lines) == 2


def test_a_strangers_key_opens_neither_the_node_nor_the_job(
    lab: RunLab, user: Visitor, tmp_path: Path
) -> None:
    make_key(tmp_path / "stranger")
    with user.run("private"):
        config = user.config("private").read_text().replace(str(user.key), f"{tmp_path}/stranger")
        (tmp_path / "stranger.config").write_text(config)
        through = user.openssh("ssh", "-F", f"{tmp_path}/stranger.config", "private", "id")
        port = lab.attempts("private")[-1]["ports"]["ssh"]
        host = lab.ssh_host("private")
        direct = user.openssh(
            *("ssh", "-F", "none", "-i", f"{tmp_path}/stranger", "-p", str(port)),
            *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
            *("-o", "BatchMode=yes", f"root@{host}", "id"),
        )
    assert (through.returncode, direct.returncode) == (255, 255)
    assert b"Permission denied" in through.stderr
    assert b"Permission denied" in direct.stderr


def test_the_jump_user_opens_the_tasks_port_and_nothing_else(lab: RunLab, user: Visitor) -> None:
    with user.run("narrow"), outside() as port:
        target = lab.attempts("narrow")[-1]["ports"]["ssh"]
        host = lab.ssh_host("narrow")
        greeting = asyncio.run(greeting_of(lab, user, host, target))
        asked = {
            "another port": ["-W", f"127.0.0.1:{port}"],
            "another address": ["-W", f"localhost:{target}"],
            "a command": ["-T"],
            "a remote port": ["-N", "-R", "0:127.0.0.1:1", "-o", "ExitOnForwardFailure=yes"],
        }
        node = f"{JUMP_USER}@127.0.0.1"
        jump = ["ssh", "-F", "none", "-i", str(user.key), "-p", str(lab.sshd.port)]
        jump += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        said = {
            what: user.openssh(*jump, *options, node, *(["id"] if what == "a command" else []))
            for what, options in asked.items()
        }
        with pytest.raises(asyncssh.ChannelOpenError):
            asyncio.run(open_socket(lab, user))
    assert greeting == b"SSH-2.0-"
    assert b"open failed" in said["another port"].stderr
    assert b"open failed" in said["another address"].stderr
    assert b"uid=" not in said["a command"].stdout
    assert b"remote port forwarding failed" in said["a remote port"].stderr


async def greeting_of(lab: RunLab, user: Visitor, host: str, port: int) -> bytes:
    """The first line of a job's server, also if it is started for this visitor alone."""
    async with as_jump_user(lab, user) as connection, asyncio.timeout(LONG):
        reader, writer = await connection.open_connection(host, port)
        said: bytes = await reader.readexactly(8)
        writer.close()
        return said


async def open_socket(lab: RunLab, user: Visitor) -> None:
    async with as_jump_user(lab, user) as connection:
        await connection.open_unix_connection(str(lab.shim.socket))


@contextlib.asynccontextmanager
async def as_jump_user(lab: RunLab, user: Visitor) -> AsyncIterator[asyncssh.SSHClientConnection]:
    async with asyncssh.connect(
        "127.0.0.1",
        lab.sshd.port,
        username=JUMP_USER,
        client_keys=[str(user.key)],
        known_hosts=None,
        config=None,
        agent_path=None,
    ) as connection:
        yield connection


def test_a_finished_job_is_left_by_its_keys_and_says_so(lab: RunLab, user: Visitor) -> None:
    wait_until(lambda: lab.sshd.jump_keys.read_text() == "", what="the keys of others to be gone")
    with user.run("finished"):
        lent = lab.sshd.jump_keys.read_text()
        host = re.escape(lab.ssh_host("finished"))
    wait_until(lambda: lab.sshd.jump_keys.read_text() == "", what="the key to be taken back")
    refused = lab.cli("ssh", "finished", "--", "true")
    assert re.fullmatch(
        rf'restrict,port-forwarding,permitopen="{host}:\d+" ssh-ed25519 \S+ fairlead\n', lent
    )
    assert refused.status == 1
    assert "finished has ended" in refused.errors


def test_ssh_switched_off_opens_no_port(lab: RunLab, user: Visitor) -> None:
    lab.start("shut", ssh="off", commands=[UNTIL_ASKED])
    refused = lab.cli("ssh", "shut", "--", "true")
    (attempt,) = lab.attempts("shut")
    lab.let_go("shut")
    lab.wait_for("shut")
    assert (attempt["ports"], attempt["ssh_host_key"]) == ({}, None)
    assert "submitted with `ssh: off`" in refused.errors


def test_a_killed_shim_lends_the_same_port_again(lab: RunLab, user: Visitor) -> None:
    with user.run("survivor"):
        lab.shim.kill9()
        lab.sshd.jump_keys.write_text("ssh-ed25519 AAAA left by a crash\n")
        lab.shim.start()
        lab.wait_for_node(lambda node: node["status"] == "connected")
        wait_until(lambda: "permitopen" in lab.sshd.jump_keys.read_text(), what="the key")
        text = lab.sshd.jump_keys.read_text()
        done = lab.cli("ssh", "survivor", "--", "echo", "still", "here")
    assert done.succeeded().output == "still here\n"
    assert "left by a crash" not in text


def test_on_the_controllers_own_machine_a_job_is_reached_directly_on_its_loopback(
    controller_process: ControllerFactory,
    shim_process: ShimFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process engine: the job has the node's network, as a job that holds its whole node."""
    make_key(tmp_path / "key")
    monkeypatch.setenv("FAIRLEAD_SSH_KEY", str(tmp_path / "key"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    controller, shim = controller_process(), shim_process("process")
    controller.cli("node", "add", "here", "--local", shim.socket).succeeded()
    task = tmp_path / "task.yaml"
    task.write_text("type: task\ncommands: [sleep 3600]\nssh: embedded\n")
    controller.cli("apply", "-d", "-f", task, "-n", "near").succeeded()
    done = wait_until(
        lambda: arrived(controller.cli("ssh", "near", "--", "echo", "$0", "&&", "id"))
    )
    listening = psutil.net_connections("tcp")
    run = controller.cli("inspect", "near", "--json").succeeded().json
    port = run["jobs"][0]["attempts"][0]["ports"]["ssh"]
    controller.cli("stop", "near", "--abort").succeeded()
    assert done is not None
    assert done.output == "$0 && id\n"
    assert {c.laddr.ip for c in listening if c.laddr and c.laddr.port == port} == {"127.0.0.1"}


def arrived(done: CommandResult) -> CommandResult | None:
    return done if done.status == 0 else None
