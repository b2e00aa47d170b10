"""The measured parts, started as users start them: dockerd, sshd, shim, controller.

Everything is below one short folder (a socket's path has at most 107 bytes) and ends with it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from entrypoint.runtime.build import Builder
from shim.settings import NetworkKind
from tests.support import docker_packages, images
from tests.support.docker_daemon import ONE_CGROUP_VERSION, DockerDaemon
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.ssh_daemon import CHECKOUT, SshDaemon
from tests.support.waiting import wait_until

IMAGE = "busybox:bench"
NETWORK = "bench"
"""`docker run` gets an existing bridge; each of our runs makes and removes its own."""
_TIDYING_SECONDS = 0.4
PROGRAMS = Path(sys.executable).parent


def unwind_on_sigterm() -> None:
    """Have SIGTERM, as of timeout(1), end what was started and remove it, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


class Crun(StrEnum):
    """crun starts the containers of Fairlead, as on a node that has it, or those of both."""

    FAIRLEAD = "fairlead"
    BOTH = "both"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `running_parts` that a user of a bench chooses."""
    parser.add_argument(
        "--networks",
        type=NetworkKind,
        choices=[NetworkKind.AGENT, NetworkKind.DOCKER],
        default=NetworkKind.AGENT,
        help="who connects containers: the shim, as on a node that can have that, or the engine "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--crun",
        type=Crun,
        choices=list(Crun),
        help="whose containers crun starts, on an engine that does not see cgroups of both versions"
        " (default: nobody's)",
    )


@dataclass
class Parts:
    folder: Path
    docker: DockerDaemon
    shim: ShimProcess
    controller: ControllerProcess
    runtime: Path
    networks: NetworkKind = NetworkKind.DOCKER
    crun: Crun | None = None

    @property
    def fairlead(self) -> str:
        return str(PROGRAMS / "fairlead")

    @property
    def env(self) -> dict[str, str]:
        """The environment of the commands, for Docker and Fairlead."""
        return {**os.environ, **self.docker.env, **self.controller.env}

    def docker_run(self, *options: str, argv: Sequence[str]) -> list[str]:
        runtime = ("--runtime", "crun") if self.crun is Crun.BOTH else ()
        return ["docker", "run", *options, *runtime, "--network", NETWORK, IMAGE, *argv]

    def write_task(self, name: str, entrypoint: Sequence[str], **fields: Any) -> Path:
        """Write the task's file as a user does: a field a line."""
        file = self.folder / f"{name}.yaml"
        task = {"type": "task", "image": IMAGE, "entrypoint": list(entrypoint), **fields}
        file.write_text(yaml.safe_dump(task, sort_keys=False))
        return file

    def wait_until_idle(self) -> None:
        """Wait until nothing of an earlier measurement disturbs the next: no container is left, and
        Docker is idle."""
        wait_until(lambda: not self.docker.docker("ps", "-aq"), 30, "all containers to be gone")
        time.sleep(_TIDYING_SECONDS)
        if self.networks is NetworkKind.DOCKER:
            wait_until(self._has_one_spare_network, 30, "the networks to be tidied up")

    def _has_one_spare_network(self) -> bool:
        ours = self.docker.docker("network", "ls", "-q", "--filter", "label=fairlead.install")
        return len(ours.split()) == 1


@contextmanager
def running_parts(
    *shim_options: str, networks: NetworkKind = NetworkKind.DOCKER, crun: Crun | None = None
) -> Iterator[Parts]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="fl-bench-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        runtime = Builder(CHECKOUT, CHECKOUT / ".build").build()
        docker = _docker(folder, stack, crun)
        (folder / "ssh").mkdir()
        sshd = SshDaemon(folder / "ssh")
        stack.callback(sshd.stop)
        sshd.start()
        options: list[str | Path] = ["--runtime", runtime, "--networks", networks, *shim_options]
        shim = ShimProcess(folder / "n", "docker", *options, env=docker.env)
        stack.callback(shim.close)
        shim.start()
        controller = ControllerProcess(folder / "c")
        stack.callback(controller.close)
        controller.start()
        introduce(controller, sshd, shim)
        yield Parts(folder, docker, shim, controller, runtime, networks, crun)


def _docker(folder: Path, stack: ExitStack, crun: Crun | None) -> DockerDaemon:
    (folder / "docker").mkdir()
    if crun is None:
        docker = DockerDaemon(folder / "docker")
    else:
        runtimes = {"crun": {"path": str(docker_packages.crun())}}
        docker = DockerDaemon(folder / "docker", within=ONE_CGROUP_VERSION, runtimes=runtimes)
    stack.callback(docker.stop)
    docker.start()
    docker.import_image(IMAGE, images.busybox_root(folder / "busybox"))
    docker.docker("network", "create", NETWORK)
    return docker


def introduce(controller: ControllerProcess, sshd: SshDaemon, shim: ShimProcess) -> None:
    sshd.authorize(controller.public_key)
    address = ["--host", "127.0.0.1", "--port", str(sshd.port), "--user", sshd.user]
    trust = ["--socket", str(shim.socket), "--host-key", sshd.host_key]
    controller.cli("node", "add", "bench", *address, *trust).succeeded()

    def is_connected() -> bool:
        nodes = controller.cli("node", "list", "--json").succeeded().json["nodes"]
        return bool(nodes[0]["status"] == "connected")

    wait_until(is_connected, 20, "the node to be connected")
