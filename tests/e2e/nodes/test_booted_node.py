"""The bundle's `install` on a machine that boots: real systemd, real units, real sshd."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from shim.wires.rules import Names
from tests.support.another_bundle import another_version
from tests.support.booted import BootedMachine, files_of, wait_for_unit
from tests.support.processes import ControllerProcess
from tests.support.ssh_daemon import CHECKOUT
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e
SHIM = "fairlead-shim.service"
SOCKET = "/run/fairlead/shim.sock"
_CONNECT = """
import subprocess, sys
from ipaddress import IPv4Address, IPv4Network
from shim.wires.guard import Guard
from shim.wires.namespace import Namespace
from shim.wires.wires import Attachment, Wires
pid = int(sys.argv[1])
wires = Wires("unit", Namespace())
wires.open((), IPv4Network("10.92.0.0/24"))
made = Attachment(task_id="t", run_id="r", container="c", address=IPv4Address(wires.give()))
wires.attach(made, pid, lambda: True)
heard = Namespace().rules_that_go()
guard = Guard("unit", Namespace())
guard.ensure()
Namespace().forget(lambda _: False)
subprocess.run(["nft", "list", "ruleset"], check=True)
guard.close()
print(subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "route"], text=True,
                     capture_output=True, check=True).stdout)
wires.detach("t")
wires.close()
"""
_NOT_SANDBOX = {
    *("Type", "NotifyAccess", "EnvironmentFile", "ExecStart", "Restart", "RestartSec", "Group"),
    *("TimeoutStartSec", "TimeoutStopSec", "WatchdogSec", "StateDirectory", "StateDirectoryMode"),
    *("RuntimeDirectory", "RuntimeDirectoryMode", "RuntimeDirectoryPreserve", "OOMPolicy"),
}
_JOB = """\
type: task
name: {name}
commands: ["{command}"]
resources: {{cpu: 1, memory: 100MB}}
"""


class Node:
    """A booted machine on which the bundle was installed, and a controller that has it."""

    def __init__(self, machine: BootedMachine, folder: str, controller: ControllerProcess) -> None:
        self.machine = machine
        self.folder = folder
        self.controller = controller

    def install(self, *options: str) -> list[dict[str, str]]:
        """The files that it has changed."""
        answer = self.machine.run(f"{self.folder}/install", "--json", *options)
        changes: list[dict[str, str]] = json.loads(answer)
        return changes

    def shim_pid(self) -> int:
        return int(self.machine.run("systemctl", "show", "-p", "MainPID", "--value", SHIM))


@pytest.fixture(scope="module")
def node(
    bare_machine: BootedMachine, booted_folder: str, testbed_folder: Path, numbers: Iterator[int]
) -> Iterator[Node]:
    controller = ControllerProcess(testbed_folder / f"c{next(numbers)}", outlasts_tests=True)
    controller.start()
    made = Node(bare_machine, booted_folder, controller)
    made.install("--docker", "none", "--tunnel-key", controller.public_key)
    where = ("--host", bare_machine.address, "--user", "fairlead", "--socket", SOCKET)
    controller.cli("node", "add", "n1", *where, "--host-key", bare_machine.host_key).succeeded()
    yield made
    controller.close()
    made.install("--uninstall", "--purge")


def test_the_shim_answers_on_its_socket(node: Node) -> None:
    ask = "import socket,sys;s=socket.socket(1);s.connect(sys.argv[1]);" + (
        "s.sendall(b'GET /v1/health HTTP/1.0\\r\\n\\r\\n');print(s.recv(999).decode())"
    )
    python = node.machine.run("sh", "-c", "echo /opt/fairlead/current/python/bin/python3.*[0-9]")
    assert "HTTP/1.0 200 OK" in node.machine.run(python.strip(), "-c", ask, SOCKET)


def test_the_units_sandbox_lets_the_shim_connect_containers(node: Node) -> None:
    """Without an engine: a process of root in a network namespace of its own is the container."""
    run = node.machine.run
    run("systemd-run", "--unit=container", "unshare", "--net", "sleep", "600")
    # nspawn makes it read-only.
    run("mount", "-o", "remount,rw,bind", "/proc/sys")
    run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward; iptables -N DOCKER-USER")
    pid = run("systemctl", "show", "-p", "MainPID", "--value", "container").strip()
    apart = f"test $(readlink /proc/{pid}/ns/net) != $(readlink /proc/1/ns/net)"
    wait_until(lambda: node.machine.attempt("sh", "-c", apart).returncode == 0, what="a namespace")
    service = (CHECKOUT / "packer/systemd" / SHIM).read_text().partition("[Service]")[2]
    lines = [line for line in service.partition("[Install]")[0].splitlines() if "=" in line]
    sandbox = [
        f"--property={line}"
        for line in lines
        if line[0].isupper() and line.partition("=")[0] not in _NOT_SANDBOX
    ]
    assert any("CapabilityBoundingSet" in one for one in sandbox)
    python = run("sh", "-c", "echo /opt/fairlead/current/python/bin/python3.*[0-9]").strip()
    asked = (
        "systemd-run",
        "--wait",
        "--pipe",
        "--quiet",
        *sandbox,
        python,
        "-I",
        "-S",
        "-c",
        _CONNECT,
    )
    told = run(*asked, pid)
    assert "default via 169.254.1.1 dev eth0" in told
    names = Names("unit")
    for rules in (f"table inet {names.table} {{", f"table inet {names.guard} {{", "ct count over"):
        assert rules in told
    run("systemctl", "stop", "container")


def test_a_second_install_changes_nothing(node: Node) -> None:
    before = files_of(node.machine)
    assert node.install() == []
    assert node.install("--check") == []
    assert files_of(node.machine) == before


def test_a_job_runs_to_its_end(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(_JOB.format(name="hello", command="echo hello from a node"))
    result = node.controller.cli("apply", "-f", file).succeeded()
    assert "hello from a node" in result.output


def test_jobs_that_are_processes_do_not_share_the_limits_of_the_shim(
    node: Node, tmp_path: Path
) -> None:
    shown = node.machine.run("systemctl", "show", "-p", "MemoryMax", "-p", "TasksMax", SHIM)
    assert sorted(shown.split()) == ["MemoryMax=infinity", "TasksMax=infinity"]
    file = tmp_path / "score.yaml"
    file.write_text(_JOB.format(name="score", command="cat /proc/self/oom_score_adj"))
    said = node.controller.cli("apply", "-f", file).succeeded().output
    assert "0" in said.split()


def test_the_shim_is_back_after_it_was_killed(node: Node) -> None:
    before = node.shim_pid()
    node.machine.run("kill", f"-{signal.SIGKILL.value}", str(before))
    wait_until(lambda: node.shim_pid() not in (0, before))
    wait_for_unit(node.machine, SHIM)


def test_the_shim_stops_cleanly(node: Node) -> None:
    node.machine.run("systemctl", "stop", SHIM)
    shown = node.machine.run("systemctl", "show", "-p", "Result,ExecMainStatus", SHIM)
    assert shown.split() == ["Result=success", "ExecMainStatus=0"]
    assert not (node.machine.root / SOCKET.lstrip("/")).exists()
    node.machine.run("systemctl", "start", SHIM)


async def test_the_tunnel_user_reaches_the_socket_and_nothing_else(node: Node) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    keys = node.machine.root / "etc/ssh/fairlead_authorized_keys"
    before = keys.read_text()
    keys.write_text(f"{before}restrict,port-forwarding {key.export_public_key().decode()}")
    host = node.machine.address
    known = asyncssh.import_known_hosts(f"{host} {node.machine.host_key}\n")
    async with asyncssh.connect(
        host, username="fairlead", client_keys=[key], known_hosts=known, config=None
    ) as connection:
        reader, writer = await connection.open_unix_connection(SOCKET)
        writer.write(b"GET /v1/health HTTP/1.0\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.0 200")
        writer.close()
        assert (await connection.run("id", check=False)).exit_status != 0
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.run("id", term_type="xterm")
        for target in ("127.0.0.1", "::1"):
            with pytest.raises(asyncssh.ChannelOpenError):
                await connection.open_connection(target, 22)
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.open_unix_connection("/run/systemd/private")
        with pytest.raises(asyncssh.ChannelListenError):
            await connection.forward_remote_port("127.0.0.1", 0, "127.0.0.1", 9)
    keys.write_text(before)


@pytest.fixture(scope="module")
def other_folder(bare_machine: BootedMachine, testbed_folder: Path) -> str:
    """Another version of the bundle, unpacked on the machine."""
    other = another_version(testbed_folder)
    folder = f"/root/fairlead-node-{other.version}"
    shutil.copytree(other.folder, bare_machine.root / folder.lstrip("/"), symlinks=True)
    return folder


def test_a_job_goes_on_through_an_upgrade_and_back(
    node: Node, other_folder: str, tmp_path: Path
) -> None:
    file = tmp_path / "long.yaml"
    file.write_text(_JOB.format(name="long", command="echo begun; sleep 600"))
    node.controller.cli("apply", "-d", "-f", file).succeeded()
    wait_until(lambda: "begun" in node.controller.cli("logs", "long").output)
    first = node.machine.run("readlink", "/opt/fairlead/current").strip()
    node.machine.run(f"{other_folder}/install")
    assert node.machine.run("readlink", "/opt/fairlead/previous").strip() == first
    assert node.machine.run("readlink", "/opt/fairlead/current").strip() != first
    node.machine.run("/opt/fairlead/previous/install")
    assert node.machine.run("readlink", "/opt/fairlead/current").strip() == first
    attempts = node.controller.cli("inspect", "long", "--json").json["jobs"][0]["attempts"]
    assert [each["status"] for each in attempts] == ["running"]
    refused = node.machine.attempt(f"{node.folder}/install", "--uninstall")
    assert refused.returncode == 1
    assert "jobs run here" in refused.stdout
    node.controller.cli("stop", "long", "--abort").succeeded()
    wait_until(lambda: not node.controller.cli("ps", "--json").json["runs"])


def test_the_doctor_finds_a_node_that_is_as_it_should_be(node: Node) -> None:
    there = json.loads(node.machine.attempt("fairlead-shim", "doctor", "--json").stdout)
    from_afar = node.controller.cli("node", "doctor", "n1", "--json").json["findings"]
    for findings in (there, from_afar):
        errors = [each for each in findings if each["level"] == "error"]
        assert [each["check"] for each in errors] == []
