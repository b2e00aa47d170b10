"""Several machines on this one: each a network namespace with its own sshd, dockerd and shim.

They hang on one switch, where a cable can be pulled; this process has a port of it too. Switching a
machine off kills whatever lives in its network, containers included, and leaves its disk as it was;
its shim finds another boot id when it is on again.
"""

from __future__ import annotations

import itertools
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tests.support.daemons import inside, run
from tests.support.docker_daemon import DockerDaemon
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.ssh_daemon import TUNNEL_USER, SshDaemon
from tests.support.waiting import wait_until

AnyHost = TypeVar("AnyHost", bound="Host")
_BRIDGE = "br0"
_numbers = itertools.count(1)


class Switch:
    """Names and addresses are of this process's own, so that several test sessions may run."""

    def __init__(self) -> None:
        number = os.getpid() * 7 + next(_numbers)
        self._tag = f"fl{number % 1_000_000}"
        self._network = f"10.{64 + number // 256 % 64}.{number % 256}"
        self._namespace = f"{self._tag}sw"
        self._ours = f"{self._tag}c"

    @property
    def network(self) -> str:
        """The first three numbers of each address."""
        return self._network

    def build(self) -> None:
        run(["ip", "netns", "add", self._namespace])
        # Without a spanning tree a port forwards as soon as its cable is mended.
        bridge = ["type", "bridge", "forward_delay", "0", "stp_state", "0"]
        self._ip("link", "add", _BRIDGE, *bridge)
        self._ip("link", "set", _BRIDGE, "up")
        run(["ip", "link", "add", self._ours, *self._plugged_into("ctl")])
        self._ip("link", "set", "ctl", "master", _BRIDGE, "up")
        run(["ip", "address", "add", f"{self._network}.254/24", "dev", self._ours])
        run(["ip", "link", "set", self._ours, "up"])

    def connect(self, number: int) -> tuple[str, str]:
        """A new namespace at port `number`: its name and its address."""
        namespace, address = f"{self._tag}n{number}", f"{self._network}.{number}"
        run(["ip", "netns", "add", namespace])
        there = ["ip", "-n", namespace]
        run([*there, "link", "add", "eth0", *self._plugged_into(f"p{number}")])
        self._ip("link", "set", f"p{number}", "master", _BRIDGE, "up")
        run([*there, "address", "add", f"{address}/24", "dev", "eth0"])
        for link in ("lo", "eth0"):
            run([*there, "link", "set", link, "up"])
        run([*there, "route", "add", "default", "via", f"{self._network}.254"])
        return namespace, address

    def cut(self, number: int) -> None:
        self._ip("link", "set", f"p{number}", "down")

    def mend(self, number: int) -> None:
        self._ip("link", "set", f"p{number}", "up")

    def remove(self) -> None:
        """Both ends of each cable go with either."""
        run(["ip", "netns", "delete", self._namespace])

    def _plugged_into(self, port: str) -> list[str]:
        return ["type", "veth", "peer", "name", port, "netns", self._namespace]

    def _ip(self, *words: str) -> None:
        run(["ip", "-n", self._namespace, *words])


class Host:
    """A machine without Docker: its jobs are plain processes. `name` is the node's in the lab;
    `address` is what others reach it at."""

    def __init__(self, switch: Switch, number: int, folder: Path) -> None:
        self._plug_in(switch, number, folder)
        self.shim = self._make_shim("process", "--cpus", "1", "--memory", "1GiB")

    def _plug_in(self, switch: Switch, number: int, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.name = f"n{number}"
        self._folder = folder
        self._switch = switch
        self._number = number
        self._boot_id = folder / "boot_id"
        self._begin_boot()
        self._namespace, self.address = switch.connect(number)
        (folder / "ssh").mkdir()
        self.sshd = SshDaemon(folder / "ssh", self.address, self._namespace)

    def _make_shim(self, engine: str, *options: str | Path, **more: Any) -> ShimProcess:
        return ShimProcess(
            self._folder / "shim",
            engine,
            *options,
            outlasts_tests=True,
            netns=self._namespace,
            boot_id=self._boot_id,
            **more,
        )

    def join(self, controller: ControllerProcess) -> None:
        """Become a node of it."""
        self.sshd.authorize(controller.public_key)
        where = ["--host", self.address, "--port", str(self.sshd.port)]
        who = ["--user", TUNNEL_USER, "--host-key", self.sshd.host_key]
        socket = ["--socket", str(self.shim.socket)]
        controller.cli("node", "add", self.name, *where, *who, *socket).succeeded()

    def in_its_network(self, *command: str | Path) -> list[str | Path]:
        """A command line that runs this there."""
        return [*inside(self._namespace), *command]

    def start(self) -> None:
        self.sshd.start()
        self.shim.start()

    def cut(self) -> None:
        """Nothing of it is lost; nobody reaches it, and it reaches nobody."""
        self._switch.cut(self._number)

    def mend(self) -> None:
        self._switch.mend(self._number)

    def switch_off(self) -> None:
        self.cut()
        self._kill_all()

    def switch_on(self) -> None:
        self._begin_boot()
        self.mend()
        self.start()

    def reboot(self) -> None:
        """Nobody has time to say anything."""
        self.switch_off()
        self.switch_on()

    def close(self) -> None:
        """In any state."""
        self.shim.close()
        self.sshd.stop()
        self._kill_all()
        run(["ip", "netns", "delete", self._namespace])

    def _begin_boot(self) -> None:
        self._boot_id.write_text(f"{uuid.uuid4()}\n")

    def _kill_all(self) -> None:
        # Again until nobody is there: a process may fork between the look and the kill.
        wait_until(lambda: not self._kill_some(), what=f"{self.name} to be off")
        # A process that is killed has left its network before we, who started it, see its end.
        wait_until(lambda: not self._has_daemons(), what=f"the daemons of {self.name} to end")

    def _has_daemons(self) -> bool:
        return self.sshd.is_alive() or self.shim.daemon.is_alive()

    def _kill_some(self) -> bool:
        """Whether anybody was there. Those that we started ourselves are our zombies until waited
        for, and are in no network any more."""
        found = list(_processes_in(Path("/run/netns") / self._namespace))
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(found)


class Machine(Host):
    def __init__(self, switch: Switch, number: int, folder: Path, runtime: Path) -> None:
        self._plug_in(switch, number, folder)
        (folder / "docker").mkdir()
        self.dockerd = DockerDaemon(folder / "docker", netns=self._namespace)
        options = ("--runtime", runtime, "--cpus", "2", "--memory", "4GiB")
        self.shim = self._make_shim("docker", *options, env=self.dockerd.env)

    def start(self) -> None:
        self.dockerd.start()
        super().start()

    def repair(self) -> None:
        """Nothing to do for one that runs and is connected."""
        self.mend()
        if not self.dockerd.is_alive():
            self.start()

    def container(self, attempt_id: str) -> str:
        named = ["--no-trunc", "--filter", f"name={attempt_id}"]
        return self.dockerd.docker("ps", "-aq", *named)

    def inside(self, attempt_id: str, *command: str) -> str:
        return self.dockerd.docker("exec", self.container(attempt_id), *command)

    def close(self) -> None:
        self.shim.close()
        self.dockerd.stop()
        super().close()

    def _has_daemons(self) -> bool:
        return self.dockerd.is_alive() or super()._has_daemons()


def _processes_in(namespace: Path) -> Iterator[int]:
    wanted = namespace.stat().st_ino
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # Processes of one namespace have one inode here (namespaces(7)).
                if (entry / "ns/net").stat().st_ino == wanted:
                    yield int(entry.name)


@contextmanager
def machines(folder: Path, runtime: Path, count: int) -> Iterator[list[Machine]]:
    """So many, running, on one switch."""
    with _running(count, lambda s, n: Machine(s, n, folder / f"m{n}", runtime)) as made:
        yield made


@contextmanager
def hosts(folder: Path, count: int) -> Iterator[list[Host]]:
    """The same without Docker."""
    with _running(count, lambda s, n: Host(s, n, folder / f"m{n}")) as made:
        yield made


@contextmanager
def _running(count: int, make: Callable[[Switch, int], AnyHost]) -> Iterator[list[AnyHost]]:
    switch = Switch()
    switch.build()
    made: list[AnyHost] = []
    try:
        for number in range(1, count + 1):
            made.append(make(switch, number))
        _each(made, lambda machine: machine.start())
        yield made
    finally:
        _each(made, lambda machine: machine.close())
        switch.remove()


def _each(made: list[AnyHost], do: Callable[[AnyHost], None]) -> None:
    """At the same time: most of it is waiting."""
    with ThreadPoolExecutor(max(1, len(made))) as pool:
        list(pool.map(do, made))
