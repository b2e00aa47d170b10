"""A controller, processes full of simulated nodes, and what can be read of the controller."""

from __future__ import annotations

import asyncio
import resource
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil

from tests.support.daemons import Daemon
from tests.support.processes import ControllerProcess
from tests.support.ssh_daemon import SshDaemon
from tests.support.waiting import eventually

NODES_IN_A_PROCESS = 1250
AT_ONCE = 64


@dataclass
class Swarm:
    """One process of nodes; `control` is its socket."""

    control: Path
    nodes: list[str]


class ScaleLab:
    def __init__(self, folder: Path, controller: ControllerProcess, swarms: list[Swarm]) -> None:
        self.folder = folder
        self.controller = controller
        self.swarms = swarms
        self._process = psutil.Process(controller.pid)
        self._rows = sqlite3.connect(
            f"file:{controller.data}/controller.db?mode=ro", uri=True, isolation_level=None
        )

    @property
    def node_names(self) -> list[str]:
        return [name for swarm in self.swarms for name in swarm.nodes]

    # -- what is read of the controller, without asking it ------------------------------------

    def cpu_seconds(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def rss(self) -> int:
        return int(self._process.memory_info().rss)

    def count(self, table: str, status: str) -> int:
        """Return the committed number."""
        column = "state" if table == "allocations" else "status"
        query = f"SELECT count(*) FROM {table} WHERE {column} = ?"
        return int(self._rows.execute(query, (status,)).fetchone()[0])

    def restarts(self) -> int:
        """Return the attempts beyond the first of each job."""
        query = "SELECT (SELECT count(*) FROM attempts) - (SELECT count(*) FROM jobs)"
        return int(self._rows.execute(query).fetchone()[0])

    async def until(self, table: str, status: str, count: int, within: float) -> None:
        await eventually(lambda: self.count(table, status) >= count, within, f"{count} {status}")

    # -- the API -------------------------------------------------------------------------------

    @asynccontextmanager
    async def api(self) -> AsyncIterator[Api]:
        headers = {"Authorization": f"Bearer {self.controller.token}"}
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(
            self.controller.url, headers=headers, connector=connector, timeout=timeout
        ) as session:
            yield Api(session)

    async def tell_nodes(self, swarm: Swarm, path: str) -> Any:
        connector = aiohttp.UnixConnector(str(swarm.control))
        async with (
            aiohttp.ClientSession("http://control", connector=connector) as session,
            session.post(path) as answer,
        ):
            return await answer.json() if answer.status == 200 else None


class Api:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def post(self, path: str, body: object) -> Any:
        async with self.session.post(path, data=msgspec.json.encode(body)) as answer:
            body = await answer.read()
            assert answer.status < 300, f"{path}: {answer.status} {body.decode()[:300]}"
            return msgspec.json.decode(body)

    async def submit(self, name: str, nodes: int = 1) -> Any:
        configuration: dict[str, object] = {
            "type": "task",
            "image": "busybox",
            "commands": ["sleep 1d"],
            "resources": {"cpu": 8, "memory": "1GiB"},
        }
        if nodes > 1:
            configuration |= {"nodes": nodes}
        return await self.post("/v1/runs", {"name": name, "configuration": configuration})


async def all_of(calls: list[Any], at_once: int = AT_ONCE) -> list[Any]:
    free = asyncio.Semaphore(at_once)

    async def one(call: Any) -> Any:
        async with free:
            return await call

    return list(await asyncio.gather(*map(one, calls)))


@contextmanager
def running(nodes: int, profile: Path | None = None) -> Iterator[ScaleLab]:
    """Yield the controller without nodes, and that many nodes that wait for it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="fl-scale-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        (folder / "n").mkdir()
        controller = ControllerProcess(folder / "c", "--log-level", "error")
        if profile is not None:
            controller.daemon.argv[:0] = [sys.executable, "-m", "cProfile", "-o", str(profile)]
        stack.callback(controller.close)
        # cProfile writes its file when the process ends by itself, and `close` kills it.
        if profile is not None:
            stack.callback(controller.daemon.stop, 60)
        swarms = []
        for first in range(0, nodes, NODES_IN_A_PROCESS):
            count = min(NODES_IN_A_PROCESS, nodes - first)
            argv = [sys.executable, "-m", "bench.scale.nodes", str(folder / "n")]
            daemon = Daemon([*argv, str(first), str(count)], folder / f"nodes.{first}.log")
            stack.callback(daemon.kill9)
            daemon.spawn()
            names = [f"n{number:05}" for number in range(first, first + count)]
            swarms.append(Swarm(folder / "n" / f"control.{first}", names))
            daemon.wait_ready(swarms[-1].control.exists, 60)
        controller.start()
        yield ScaleLab(folder, controller, swarms)


async def add_nodes(lab: ScaleLab) -> None:
    folder = lab.folder / "n"
    async with lab.api() as api:
        bodies = [
            {"name": name, "local_socket": str(folder / f"{name}.s")} for name in lab.node_names
        ]
        await all_of([api.post("/v1/nodes", body) for body in bodies])
    await lab.until("nodes", "connected", len(lab.node_names), 300)


@contextmanager
def behind_sshd(lab: ScaleLab) -> Iterator[SshDaemon]:
    (lab.folder / "ssh").mkdir()
    sshd = SshDaemon(lab.folder / "ssh")
    sshd.start()
    try:
        sshd.authorize(lab.controller.public_key)
        yield sshd
    finally:
        sshd.stop()


async def add_ssh_nodes(lab: ScaleLab, sshd: SshDaemon, names: Sequence[str]) -> None:
    folder = lab.folder / "n"
    connected = lab.count("nodes", "connected") + len(names)
    async with lab.api() as api:
        bodies = [
            {
                "name": name,
                "host": "127.0.0.1",
                "port": sshd.port,
                "user": sshd.user,
                "socket": str(folder / f"{name}.s"),
                "host_key": sshd.host_key,
            }
            for name in names
        ]
        await all_of([api.post("/v1/nodes", body) for body in bodies])
    await lab.until("nodes", "connected", connected, 300)
