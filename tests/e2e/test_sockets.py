"""Shim and runner can be reached through files with an owner and a mode, and in no other way."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docker_daemon import DockerDaemon
from tests.support.processes import ShimProcess
from tests.support.sockets import abstract_sockets, tcp_listeners, with_descendants
from tests.support.ssh_daemon import GROUP, free_port
from tests.support.testbed import ControllerFactory, ShimFactory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

LONG_JOB = "type: task\ncommands: [sleep 600]\n"


def _start_a_job(
    controller_process: ControllerFactory, shim: ShimProcess, image: str | None = None
) -> None:
    controller = controller_process()
    controller.cli("node", "add", "here", "--local", shim.socket).succeeded()
    file = shim.data.parent / "job.yaml"
    file.write_text(LONG_JOB + (f"image: {image}\n" if image else ""))
    controller.cli("apply", "-f", file, "-n", "long", "-d").succeeded()
    wait_until(lambda: controller.cli("inspect", "long", "--json").json["status"] == "running")


def _nobody_listens(pids: list[int]) -> None:
    assert tcp_listeners(pids) == []
    assert abstract_sockets(pids) == []


def test_no_tcp_port_is_opened_for_a_container(
    shim_process: ShimFactory,
    controller_process: ControllerFactory,
    dockerd: DockerDaemon,
    busybox_image: str,
) -> None:
    shim = shim_process("docker")
    _start_a_job(controller_process, shim, busybox_image)
    container = dockerd.docker("ps", "-q", "--filter", "label=fairlead.task")
    entrypoint = int(dockerd.docker("inspect", "-f", "{{.State.Pid}}", container))
    pids = with_descendants(entrypoint)
    assert len(pids) > 1
    _nobody_listens([shim.pid, *pids])


def test_no_tcp_port_is_opened_by_the_process_engine(
    shim_process: ShimFactory, controller_process: ControllerFactory
) -> None:
    shim = shim_process("process")
    _start_a_job(controller_process, shim)
    pids = with_descendants(shim.pid)
    assert len(pids) > 1
    _nobody_listens(pids)


def test_the_shims_socket_belongs_to_its_group_alone(shim_process: ShimFactory) -> None:
    shim = shim_process("process")
    assert shim.socket.group() == GROUP
    assert stat.S_IMODE(shim.socket.stat().st_mode) == 0o660


def test_a_container_with_host_networking_finds_no_way_to_the_shim(
    shim_process: ShimFactory, dockerd: DockerDaemon, busybox_image: str
) -> None:
    shim = shim_process("docker")
    host = ("run", "--rm", "--network=host", busybox_image)
    names = dockerd.docker(*host, "cat", "/proc/net/unix")
    assert str(shim.socket) in names, "the container does not share the host's network"
    with pytest.raises(AssertionError, match="No such file"):
        dockerd.docker(*host, "ls", shim.socket)
    assert abstract_sockets([shim.pid]) == []
    assert tcp_listeners([shim.pid]) == []


@pytest.fixture
def listener() -> Iterator[tuple[int, int]]:
    """A process that listens, with its port: what the checks above must be able to find."""
    port = free_port()
    argv = ["busybox", "nc", "-l", "-p", str(port)]
    with subprocess.Popen(argv, cwd=Path("/")) as process:
        yield process.pid, port
        process.kill()


def test_a_listener_would_be_found(listener: tuple[int, int]) -> None:
    pid, port = listener
    found = wait_until(lambda: tcp_listeners([pid]))
    assert [line.rpartition(":")[2] for line in found] == [f"{port:04X}"]
