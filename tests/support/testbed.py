"""Fixtures of real parts: dockerd, sshd, the runtime, our daemons. Nothing is skipped.

A part that this machine lacks fails the test, naming what to install. Daemons live in a short
folder below /tmp since paths of sockets have 107 bytes.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from entrypoint.runtime.build import Builder
from tests.support import images
from tests.support.daemons import run
from tests.support.docker_daemon import DockerDaemon
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.proxy import CuttableProxy
from tests.support.ssh_daemon import CHECKOUT, SshDaemon

ShimFactory = Callable[..., ShimProcess]
ControllerFactory = Callable[..., ControllerProcess]
ProxyFactory = Callable[[int], CuttableProxy]


def _need(program: str, package: str) -> None:
    if os.geteuid() != 0:
        pytest.fail("this test starts its own daemons: run it as root (./dev e2e)", pytrace=False)
    if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
        pytest.fail(f"{program} is missing: apt-get install {package}", pytrace=False)


@pytest.fixture(scope="session")
def testbed_folder() -> Iterator[Path]:
    """Short, and open to the tunnel user."""
    folder = Path(tempfile.mkdtemp(prefix="fl-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def runtime() -> Path:
    """The hermetic runtime of this checkout, built if it is not."""
    _need("musl-gcc", "musl-tools")
    programs = str(Path(sys.executable).parent)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", programs, prepend=os.pathsep)
        return Builder(CHECKOUT, CHECKOUT / ".build").build()


@pytest.fixture(scope="session")
def dockerd(testbed_folder: Path) -> Iterator[DockerDaemon]:
    _need("dockerd", "docker.io")
    folder = testbed_folder / "docker"
    folder.mkdir()
    daemon = DockerDaemon(folder)
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture(scope="session")
def busybox_image(dockerd: DockerDaemon, testbed_folder: Path) -> str:
    _need("busybox", "busybox-static")
    root = images.busybox_root(testbed_folder / "busybox")
    return dockerd.import_image("busybox:e2e", root)


@pytest.fixture(scope="session")
def noshell_image(dockerd: DockerDaemon, testbed_folder: Path) -> str:
    """Its only program is /tool: `echo WORDS…`, `exit N`, `env`."""
    _need("musl-gcc", "musl-tools")
    root = images.noshell_root(testbed_folder / "noshell")
    return dockerd.import_image("noshell:e2e", root)


@pytest.fixture(scope="session")
def sshd(testbed_folder: Path) -> Iterator[SshDaemon]:
    _need("sshd", "openssh-server")
    folder = testbed_folder / "ssh"
    folder.mkdir()
    daemon = SshDaemon(folder)
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture
def shim_process(
    request: pytest.FixtureRequest, testbed_folder: Path, numbers: Iterator[int]
) -> Iterator[ShimFactory]:
    """Call it as `shim_process("docker")` or `("process")`, with more options of the command.

    The shim answers when the call returns. Its containers are removed when the test ends.
    """
    started: list[ShimProcess] = []

    def start(engine: str, *options: str | Path) -> ShimProcess:
        env: dict[str, str] = {}
        if engine == "docker":
            env = request.getfixturevalue("dockerd").env
            options = ("--runtime", request.getfixturevalue("runtime"), *options)
        shim = ShimProcess(testbed_folder / f"n{next(numbers)}", engine, *options, env=env)
        started.append(shim)
        shim.start()
        return shim

    yield start
    for shim in started:
        shim.close()
    if "dockerd" in request.fixturenames or any("docker" in s.daemon.argv for s in started):
        request.getfixturevalue("dockerd").remove_containers()


@pytest.fixture
def controller_process(testbed_folder: Path, numbers: Iterator[int]) -> Iterator[ControllerFactory]:
    """Call it with more options of `fairlead controller`; it answers when the call returns."""
    started: list[ControllerProcess] = []

    def start(*options: str | Path) -> ControllerProcess:
        controller = ControllerProcess(testbed_folder / f"c{next(numbers)}", *options)
        started.append(controller)
        controller.start()
        return controller

    yield start
    for controller in started:
        controller.close()


@pytest.fixture
def cuttable_proxy() -> Iterator[ProxyFactory]:
    """Call it with a port: `cuttable_proxy(sshd.port).port` is the one to connect to."""
    proxies: list[CuttableProxy] = []

    def start(target_port: int) -> CuttableProxy:
        proxies.append(CuttableProxy(target_port))
        return proxies[-1]

    yield start
    for proxy in proxies:
        proxy.close()


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture(scope="module")
def namespace(numbers: Iterator[int]) -> Iterator[str]:
    """A network namespace, as of a machine without the other engines of this one."""
    name = f"fl-e2e-{os.getpid()}-{next(numbers)}"
    run(["ip", "netns", "add", name])
    run(["ip", "-n", name, "link", "set", "lo", "up"])
    # What a node sends to a wire has an address of another of its devices as its source.
    run(["ip", "-n", name, "address", "add", "192.0.2.1/32", "dev", "lo"])
    yield name
    run(["ip", "netns", "delete", name])
