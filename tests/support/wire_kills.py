"""Kills of a process that connects containers, and what the next life of the shim finds."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
import traceback
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path
from typing import NoReturn

from shim.wires.wires import Attachment, Wires
from tests.support.waiting import wait_until
from tests.support.wire_lab import OUTSIDE, OUTSIDE6, SUBNET, Member, WireNode

MEMBERS = 4
ASKED = 3
LATEST = 0.25
"""Seconds of a life at most: a wire takes some 20 ms here."""
_INSTALL = "kills"


class KillLab:
    """Four containers of two runs. Their labels and what the shim has said of them are in files, as
    the engine and the controller keep them: they outlive each kill."""

    def __init__(self, node: WireNode, folder: Path, seed: int = 0) -> None:
        self.node = node
        self.kills = 0
        self.broken: list[str] = []
        self._folder = folder
        self._random = random.Random(seed)
        self._members = [Member() for _ in range(MEMBERS)]
        self._wires = self._next_life()

    def kill_once(self) -> None:
        seed, seconds = self._random.random(), self._random.uniform(0, LATEST)
        child = os.fork()
        if not child:
            self._live_or_exit(seed)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        self.kills += 1
        if not os.WIFSIGNALED(status):
            self._break("the life had ended by itself")
        # A program that it had started goes on to its end, such as one that writes rules.
        wait_until(lambda: not _members_of(child), what="programs of the killed one to end")
        self._check_told()
        self._wires = self._next_life()
        self._check_whole()

    def _live_or_exit(self, seed: float) -> NoReturn:
        """A copy of the tests must not go on with them."""
        try:
            os.setpgid(0, 0)
            self._live(seed)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _live(self, seed: float) -> None:
        """Connect and disconnect until the end."""
        chosen = random.Random(seed)
        wires = self._next_life()
        while True:
            number = chosen.randrange(MEMBERS)
            (self._folder / f"told-{number}").unlink(missing_ok=True)
            if (address := self._label(number)) is not None:
                task_id = _attachment(number, address).task_id
                wires.cut(task_id)
                (self._folder / f"label-{number}").unlink()
                wires.detach(task_id)
            if chosen.random() < 0.2:
                wires.repair()
            if chosen.random() < 0.8:
                one = _attachment(number, IPv4Address(wires.give()))
                # Most are expected, as before their containers are made, and some are not, as those
                # that a shim takes over.
                if chosen.random() < 0.8:
                    wires.expect(one.task_id, one.run_id)
                self._write(f"label-{number}", str(one.address))
                wires.attach(one, self._members[number].pid, lambda: True)
                self._write(f"told-{number}", "")

    def _write(self, name: str, text: str) -> None:
        fresh = self._folder / "fresh"
        fresh.write_text(text)
        fresh.replace(self._folder / name)

    def _label(self, number: int) -> IPv4Address | None:
        path = self._folder / f"label-{number}"
        return IPv4Address(path.read_text()) if path.exists() else None

    def _attached(self) -> list[Attachment]:
        labels = [(number, self._label(number)) for number in range(MEMBERS)]
        return [_attachment(number, label) for number, label in labels if label is not None]

    def _next_life(self) -> Wires:
        """As `WiredNetworks.open`: take over what is labelled, and complete it."""
        wires = Wires(_INSTALL, self.node.namespace())
        attached = self._attached()
        wires.open(attached, SUBNET)
        for one in attached:
            number = int(one.task_id)
            wires.attach(one, self._members[number].pid, lambda: True)
        return wires

    def _check_told(self) -> None:
        """A container whose start was reported has its network, also before the next life."""
        for number, member in enumerate(self._members):
            if (self._folder / f"told-{number}").exists() and not self._reaches(member):
                seen = f"wires {sorted(self.node.wires())}, rules of {sorted(self._listed())}"
                self._break(f"container {number} was reported and has no network; {seen}")

    def _reaches(self, member: Member) -> bool:
        """Ask some times: on a loaded machine an answer may be late. Nobody connects a container
        between a kill and the next life, so one without a network stays without it."""
        return any(member.reaches(OUTSIDE) for _ in range(ASKED))

    def _check_whole(self) -> None:
        attached = self._attached()
        names = {self._wires._names.wire(one.task_id) for one in attached}
        if self.node.wires() != names:
            self._break(f"wires {sorted(self.node.wires())} instead of {sorted(names)}")
        routes, addresses = sorted(self.node.routes()), sorted(str(one.address) for one in attached)
        if routes != addresses or len(set(routes)) != len(routes):
            self._break(f"routes to {routes} instead of {addresses}")
        if (listed := self._listed()) != names:
            self._break(f"rules of {sorted(listed)} instead of {sorted(names)}")
        for number, member in enumerate(self._members):
            wired = any(one.task_id == str(number) for one in attached)
            if (found := member.reached(OUTSIDE, OUTSIDE6)) != [wired] * 2:
                self._break(f"container {number}: labelled {wired}, reaches {found}")

    def _listed(self) -> set[str]:
        table = self._wires._names.table
        answer = self.node.inside("nft", "-j", "list", "map", "inet", table, "runs")
        return set(re.findall(rf"{self._wires._names.wires}[0-9a-f]{{8}}", json.dumps(answer)))

    def _break(self, what: str) -> None:
        self.broken.append(f"after kill {self.kills}: {what}")

    def plant(self) -> None:
        """Put a stray wire and look: the lab must see it."""
        stray = f"{self._wires._names.wires}00000000"
        self.node.inside("ip", "link", "add", stray, "type", "veth", "peer", "name", "planted")
        self._check_whole()
        self.node.inside("ip", "link", "delete", stray)

    def close(self) -> None:
        for one in self._attached():
            self._wires.detach(one.task_id)
        self._wires.close()
        for member in self._members:
            member.end()


def _members_of(group: int) -> list[str]:
    """Return the living processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # A program's name may hold brackets and spaces (proc(5)): the last bracket ends it.
            state, _, its_group = stat.read_bytes().rpartition(b")")[2].split()[:3]
            if int(its_group) == group and state not in b"ZX":
                found.append(stat.parent.name)
    return found


def _attachment(number: int, address: IPv4Address) -> Attachment:
    run_id = f"run-{number % 2}"
    return Attachment(task_id=str(number), run_id=run_id, container=str(number), address=address)
