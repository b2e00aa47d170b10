"""kill -9 of the shim at every step of a task's life, over a real dockerd.

0 lost tasks, 0 containers started twice, 0 GPUs with two owners, 0 leaked mounts, keys, containers;
then the shim finds many running containers again within two seconds of its start. The containers
have the real runtime: each job is run once, its log is whole, and its end is kept.

Every other task has an image that is pulled with a password. No shim keeps the password, so it must
be given again. The same is proven through a controller, which must do that by itself: the shim is
killed during pulls.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench.proofs._table import conclude
from entrypoint.runtime.build import Builder
from fairlead.wire.shim import RegistryAuth
from tests.support import images
from tests.support.docker_daemon import DockerDaemon
from tests.support.docker_registry import DockerRegistry
from tests.support.kill_lab import KillLab, PrivateImage, path_with
from tests.support.lab import ControllerLab
from tests.support.processes import ControllerProcess
from tests.support.proxy import CuttableProxy
from tests.support.ssh_daemon import CHECKOUT
from tests.support.waiting import wait_until

_LIMIT = 2.0
_LOGIN = RegistryAuth(username="anna", password="s3cret-of-the-registry")


class Runs(ControllerLab):
    """The runs of a controller, for tasks that name their image."""

    def __init__(self, controller: ControllerProcess, folder: Path, image: str) -> None:
        self.controller, self.folder, self.image = controller, folder, image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, metavar="N")
    parser.add_argument("--containers", type=int, default=50, metavar="N")
    parser.add_argument("--pulls", type=int, default=20, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="fl-kill-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "docker").mkdir()
        (folder / "bin").mkdir()
        stack.enter_context(path_with(folder / "bin"))
        docker = DockerDaemon(folder / "docker")
        stack.callback(docker.stop)
        docker.start()
        image = docker.import_image("busybox:kill", images.busybox_root(folder / "busybox"))
        (folder / "lab").mkdir()
        runtime = Builder(CHECKOUT, CHECKOUT / ".build").build()
        registry = DockerRegistry(folder / "registry", f"{_LOGIN.username}:{_LOGIN.password}")
        registry.start()
        stack.callback(registry.stop)
        private = PrivateImage(registry.push(docker, image, "team/tool:kill"), _LOGIN)
        lab = KillLab(folder / "lab", docker, image, given.seed, runtime, private)
        stack.callback(lab.close)
        asyncio.run(_lives(lab, given.kills))
        if given.pulls:
            _pulls(lab, registry, folder / "controller", given.pulls)
        readopted = asyncio.run(_many(lab, given.containers)) if given.containers else []
    found = lab.found
    if readopted and max(readopted) > _LIMIT:
        found.violations.append(f"re-adoption took {max(readopted):.2f} s")
    figures: list[tuple[str, object]] = [
        ("kills", found.kills),
        ("lives of tasks", found.lives),
        ("credentials asked for again", found.asked),
        ("pulls with a password through a controller", given.pulls),
        *sorted(found.moments.items()),
        ("start to first answer, median", f"{median(found.restarts):.2f} s"),
    ]
    if readopted:
        what = f"the same with {given.containers} containers, worst of {len(readopted)}"
        figures.append((what, f"{max(readopted):.2f} s"))
    conclude("kill -9 of the shim", figures, found.violations)


async def _lives(lab: KillLab, kills: int) -> None:
    await asyncio.to_thread(lab.start, armed=True)
    number = 0
    while lab.found.kills < kills and len(lab.found.violations) < 10:
        await lab.live_once(number)
        number += 1
    await asyncio.to_thread(lab.finish)
    await asyncio.to_thread(lab.check_leaks)


def _pulls(lab: KillLab, registry: DockerRegistry, folder: Path, count: int) -> None:
    """Run a controller with a shim that is killed one to three times during each pull."""
    network = CuttableProxy(registry.port)
    controller = ControllerProcess(folder)
    controller.start()
    try:
        controller.cli("node", "add", "n1", "--local", lab.shim.socket).succeeded()
        runs = Runs(controller, folder, lab.image)
        for number in range(count):
            _pull(lab, runs, network, f"pull-{number}", kills=1 + number % 3)
    finally:
        controller.close()
        network.close()


def _pull(lab: KillLab, runs: Runs, network: CuttableProxy, name: str, kills: int) -> None:
    def pull_begins(after: int) -> int:
        wait_until(lambda: network.connections > after, what=f"a pull of {name}")
        return network.connections

    before = network.connections
    network.stall()
    image = f"127.0.0.1:{network.port}/team/tool:kill"
    runs.submit(
        name,
        image=image,
        pull_policy="always",
        commands=["echo start"],
        registry_auth={"username": _LOGIN.username, "password": _LOGIN.password},
    )
    try:
        seen = pull_begins(after=before)
        for _ in range(kills):
            lab.shim.restart()
            lab.found.kills += 1
            lab.found.moments["pulling for a controller"] += 1
            seen = pull_begins(after=seen)
        network.restore()
        ended = runs.wait_for(name)["status"], len(runs.attempts(name)), runs.log(name)
    except TimeoutError as error:
        lab.found.violations.append(f"{name}: {error}")
        network.restore()
        runs.cli("stop", name, "--abort").succeeded()
        runs.wait_for(name)
        return
    if ended != ("done", 1, b"start\n"):
        lab.found.violations.append(f"{name} ended otherwise: {ended}")


async def _many(lab: KillLab, count: int) -> list[float]:
    """Return the seconds from the start of a killed shim to its first answer, with `count` running
    tasks."""
    took = await lab.readopt(count, tries=3)
    await asyncio.to_thread(lab.check_leaks)
    return took
