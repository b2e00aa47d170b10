"""One lab for all tests of runs: what they start they also end, and nodes are left as found."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docker_daemon import DockerDaemon
from tests.support.images import busybox_root
from tests.support.lab import PlainLab, RunLab
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.proxy import CuttableProxy
from tests.support.ssh_daemon import SshDaemon
from tests.support.testbed import ControllerFactory, ProxyFactory, ShimFactory

_CAPACITY = ("--cpus", "2", "--memory", "4GiB")


@pytest.fixture(scope="session")
def whole_lab(
    dockerd: DockerDaemon,
    sshd: SshDaemon,
    runtime: Path,
    busybox_image: str,
    testbed_folder: Path,
    numbers: Iterator[int],
) -> Iterator[RunLab]:
    folder = testbed_folder / f"lab{next(numbers)}"
    pythons = ("--python-downloads", folder / "pythons" / "pythons.json")
    options: list[str | Path] = ["--runtime", runtime, "--jump-keys", sshd.jump_keys]
    options += [*sshd.lending(folder / "exposed"), *_CAPACITY, *pythons]
    shim = ShimProcess(folder / "node", "docker", *options, env=dockerd.env, outlasts_tests=True)
    controller = ControllerProcess(folder / "controller", outlasts_tests=True)
    shim.start()
    controller.start()
    sshd.authorize(controller.public_key)
    made = RunLab(controller, shim, dockerd, sshd, sshd.port, folder, busybox_image)
    made.connect_node("n1", "--host-key", sshd.host_key)
    yield made
    controller.close()
    shim.close()
    dockerd.remove_containers()
    for daemon in (controller.daemon, shim.daemon):
        assert "Traceback" not in daemon.log.read_text(errors="replace"), daemon.tail()


@pytest.fixture
def lab(whole_lab: RunLab) -> Iterator[RunLab]:
    """Runs that a test has left, as a failed one does, are ended before the next test."""
    yield whole_lab
    for process in (whole_lab.shim, whole_lab.controller):
        if not process.daemon.is_alive():
            process.start()
    whole_lab.end_runs()


@pytest.fixture
def plain_lab(
    controller_process: ControllerFactory, shim_process: ShimFactory, tmp_path: Path
) -> PlainLab:
    controller, shim = controller_process(), shim_process("process")
    controller.cli("node", "add", "n1", "--local", shim.socket).succeeded()
    return PlainLab(controller, shim, tmp_path)


@pytest.fixture
def lab_behind_proxy(
    shim_process: ShimFactory,
    controller_process: ControllerFactory,
    cuttable_proxy: ProxyFactory,
    dockerd: DockerDaemon,
    sshd: SshDaemon,
    busybox_image: str,
    tmp_path: Path,
) -> tuple[RunLab, CuttableProxy]:
    """With the network between controller and node in the test's hands."""
    controller = controller_process()
    sshd.authorize(controller.public_key)
    network = cuttable_proxy(sshd.port)
    shim = shim_process("docker", *_CAPACITY)
    made = RunLab(controller, shim, dockerd, sshd, network.port, tmp_path, busybox_image)
    made.connect_node("n1", "--host-key", sshd.host_key)
    return made, network


@pytest.fixture(scope="session")
def image_with_users(dockerd: DockerDaemon, testbed_folder: Path) -> str:
    """It has a user anna, 1234:1235, and runs as her unless told otherwise."""
    root = busybox_root(testbed_folder / "users")
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nanna:x:1234:1235:Anna:/home/anna:/bin/sh\n"
    )
    (root / "etc/group").write_text("root:x:0:\ncrew:x:1235:\nvideo:x:44:anna\n")
    return dockerd.import_image("users:e2e", root, "--change", "USER anna")


@pytest.fixture(scope="session")
def here() -> str:
    """An address of this machine that containers reach too. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
