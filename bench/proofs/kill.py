"""kill -9 of the shim at every step of a task's life, over a real dockerd.

0 lost tasks, 0 containers started twice, 0 GPUs with two owners, 0 leaked mounts, keys, containers;
then the shim finds many running containers again within two seconds of its start. The containers
have the real runtime: each job is run once, its log is whole, and its end is kept.
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
from tests.support import images
from tests.support.docker_daemon import DockerDaemon
from tests.support.kill_lab import KillLab, path_with
from tests.support.ssh_daemon import CHECKOUT

_LIMIT = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, metavar="N")
    parser.add_argument("--containers", type=int, default=50, metavar="N")
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
        lab = KillLab(folder / "lab", docker, image, given.seed, runtime)
        stack.callback(lab.close)
        asyncio.run(_lives(lab, given.kills))
        readopted = asyncio.run(_many(lab, given.containers)) if given.containers else []
    found = lab.found
    if readopted and max(readopted) > _LIMIT:
        found.violations.append(f"re-adoption took {max(readopted):.2f} s")
    figures: list[tuple[str, object]] = [
        ("kills", found.kills),
        ("lives of tasks", found.lives),
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


async def _many(lab: KillLab, count: int) -> list[float]:
    """Seconds from the start of a killed shim to its first answer, with `count` running tasks."""
    took = await lab.readopt(count, tries=3)
    await asyncio.to_thread(lab.check_leaks)
    return took
