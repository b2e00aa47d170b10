"""A job that sends to another run's container without end, while others change the node's
firewall: nothing arrives."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shim.engines.docker.wired import WiredNetworks
from tests.e2e.test_wires import WiredWorld, _world
from tests.support import images
from tests.support.docker_daemon import DockerDaemon
from tests.support.waiting import wait_until
from tests.support.wire_lab import WireNode

pytestmark = pytest.mark.e2e

_TURNS = 5
_SEND = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print("sending", flush=True)
while True:
    try:
        for _ in range(50):
            s.sendto(b"x", (sys.argv[1], 5000))
    except OSError:
        pass
    time.sleep(0.0005)
"""
_COUNT = """
import select, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 5000))
print("counting", flush=True)
seen = 0
while True:
    readable, _, _ = select.select([s, sys.stdin], [], [])
    if s in readable:
        s.recv(1)
        seen += 1
        if seen == 1:
            print("first", flush=True)
    else:
        break
print(seen, flush=True)
"""


class Flood:
    """One job that sends to another run's, and what arrives there. Both go on when their containers
    end."""

    def __init__(self, sender: str, receiver: str, address: str) -> None:
        self._count = _in(receiver, _COUNT)
        self._send = _in(sender, _SEND, address)
        for process, word in ((self._count, "counting\n"), (self._send, "sending\n")):
            assert process.stdout is not None
            assert process.stdout.readline() == word

    def wait_for_one(self) -> None:
        assert self._count.stdout is not None
        assert self._count.stdout.readline() == "first\n"

    def end(self) -> int:
        """Return how many packets have arrived."""
        self._send.kill()
        self._send.communicate()
        return int(self._count.communicate("\n")[0].split()[-1])

    def close(self) -> None:
        for process in (self._send, self._count):
            process.kill()
            # Closes its pipes and waits for it.
            with process:
                pass


def _in(pid: str, script: str, *argv: str) -> subprocess.Popen[str]:
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", sys.executable, "-c", script, *argv]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def node(numbers: Iterator[int]) -> Iterator[WireNode]:
    made = WireNode(f"fl-e2e-{os.getpid()}-{next(numbers)}")
    yield made
    made.delete()


@pytest.fixture(scope="module")
def node_dockerd(testbed_folder: Path, node: WireNode) -> Iterator[DockerDaemon]:
    folder = testbed_folder / "floods-docker"
    folder.mkdir()
    daemon = DockerDaemon(folder, netns=node.name)
    daemon.start()
    daemon.import_image("busybox:latest", images.busybox_root(folder / "busybox"))
    yield daemon
    daemon.stop()


@pytest.fixture
async def world(
    node_dockerd: DockerDaemon, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[WiredWorld]:
    monkeypatch.setenv("DOCKER_HOST", node_dockerd.url)
    async with _world() as made:
        yield made
        node_dockerd.remove_containers()


@asynccontextmanager
async def _flood(world: WiredWorld, dockerd: DockerDaemon) -> AsyncIterator[Flood]:
    ours = await world.run(1, "ours", "ready; wait_forever")
    theirs = await world.run(2, "theirs", "ready; wait_forever")
    sender, receiver = (_pid(dockerd, one.container_id) for one in (ours, theirs))
    flood = await asyncio.to_thread(Flood, sender, receiver, theirs.address)
    try:
        yield flood
    finally:
        await asyncio.to_thread(flood.close)


def _pid(dockerd: DockerDaemon, container_id: str) -> str:
    return dockerd.docker("inspect", "-f", "{{.State.Pid}}", container_id)


def _flush(*programs: str) -> Callable[[WireNode, DockerDaemon], None]:
    def act(node: WireNode, dockerd: DockerDaemon) -> None:
        for program in programs:
            node.inside(program, "-F")

    return act


def _flush_all(node: WireNode, dockerd: DockerDaemon) -> None:
    node.inside("nft", "flush", "ruleset")
    wait_until(lambda: "from_wire" in node.inside("nft", "list", "ruleset"), what="the table")


def _networks(node: WireNode, dockerd: DockerDaemon) -> None:
    dockerd.docker("network", "create", "others")
    dockerd.docker("network", "prune", "-f")


def _kill(node: WireNode, dockerd: DockerDaemon) -> None:
    dockerd.kill9()
    dockerd.start()


def _restart(node: WireNode, dockerd: DockerDaemon) -> None:
    dockerd.restart()


@pytest.mark.parametrize(
    "act",
    # After the last one, an engine makes no network until it is restarted.
    [_flush("iptables", "ip6tables"), _networks, _kill, _restart, _flush_all],
    ids=["iptables", "networks", "kill", "restart", "ruleset"],
)
async def test_nothing_gets_through_while_the_engine_changes_its_rules(
    world: WiredWorld,
    node: WireNode,
    node_dockerd: DockerDaemon,
    act: Callable[[WireNode, DockerDaemon], None],
) -> None:
    async with _flood(world, node_dockerd) as flood:
        for _ in range(_TURNS):
            await asyncio.to_thread(act, node, node_dockerd)
        assert await asyncio.to_thread(flood.end) == 0


async def test_nothing_gets_through_when_the_engine_ends_its_containers(
    world: WiredWorld, node_dockerd: DockerDaemon
) -> None:
    async with _flood(world, node_dockerd) as flood:
        await asyncio.to_thread(lambda: node_dockerd.live_restore(on=False))
        try:
            for _ in range(_TURNS):
                await asyncio.to_thread(node_dockerd.restart)
        finally:
            await asyncio.to_thread(lambda: node_dockerd.live_restore(on=True))
        assert await asyncio.to_thread(flood.end) == 0


async def test_the_bed_can_tell_that_something_gets_through(
    world: WiredWorld, node: WireNode, node_dockerd: DockerDaemon
) -> None:
    async with _flood(world, node_dockerd) as flood:
        (wired,) = (one for one in world.engine._opened._both() if isinstance(one, WiredNetworks))
        await wired.stop_repairing()
        await asyncio.to_thread(wired._guard.close)
        await asyncio.to_thread(node.inside, "nft", "flush", "ruleset")
        await asyncio.to_thread(flood.wait_for_one)
        assert await asyncio.to_thread(flood.end) > 0
