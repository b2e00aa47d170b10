"""Makes many hosts nodes at once, and shows the progress of each."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from controller.commands.hosts.connection import HostError
from controller.commands.hosts.fleet_file import FleetHost
from controller.commands.hosts.host_plan import HostPlan
from controller.commands.hosts.install import Result, make_node
from controller.commands.hosts.nodes_api import NodesApi
from controller.commands.hosts.preflight import HostFinding, Level
from controller.commands.hosts.trust import UnknownHostKey, trusted_key
from fairlead.cli import output
from fairlead.cli.errors import CliError
from fairlead.errors import FairleadError

AT_ONCE = 8


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one host. `error`: why it is no node now, or not as it should be."""

    name: str
    changed: list[str] = []
    error: str | None = None


class HostTable:
    """A live table on a terminal, else one line for each stage."""

    def __init__(self, names: Sequence[str], confirms: Callable[[str], bool]) -> None:
        self._rows = {name: Text("waiting") for name in names}
        self._confirms = confirms
        self._live: Live | None = None
        self._lock = threading.Lock()
        self._answer: bool | None = None

    def shown(self) -> AbstractContextManager[object]:
        if not sys.stderr.isatty():
            return nullcontext()
        console = Console(stderr=True)
        self._live = Live(self._table(), console=console, refresh_per_second=8)
        return self._live

    def tell(self, name: str, text: str) -> None:
        self._rows[name] = Text(text)
        if self._live is None:
            output.note(f"{name}: {text}")
        else:
            self._live.update(self._table())

    def agrees(self, question: str) -> bool:
        """Ask once for all hosts, and only when one of them would change."""
        with self._lock:
            if self._answer is None:
                # rich redraws the table some times a second, over the question and its answer.
                if self._live is not None:
                    self._live.stop()
                self._answer = self._confirms(question)
                if self._live is not None:
                    self._live.start()
            return self._answer

    def _table(self) -> Table:
        table = Table("NODE", "STAGE", box=None, pad_edge=False)
        for name, text in self._rows.items():
            table.add_row(Text(name), text)
        return table


class HostRow:
    """One host's progress on the table."""

    def __init__(self, name: str, table: HostTable) -> None:
        self._name = name
        self._table = table
        self._shown_tenth = 0

    def stage(self, text: str) -> None:
        self._table.tell(self._name, text)

    def found(self, findings: Sequence[HostFinding]) -> None:
        for finding in findings:
            if finding.level is Level.WARNING:
                self._table.tell(self._name, f"{finding.subject}: {finding.message}")

    def agrees(self, findings: Sequence[HostFinding]) -> bool:
        if all(finding.level in (Level.OK, Level.WARNING) for finding in findings):
            return True
        return self._table.agrees("Install Fairlead on the hosts that lack it?")

    def uploaded(self, size: int, whole: int) -> None:
        tenth = size * 10 // max(whole, 1)
        if tenth > self._shown_tenth:
            self._shown_tenth = tenth
            self._table.tell(self._name, f"uploaded {tenth * 10} %")


async def host_keys_of(
    hosts: Sequence[FleetHost], pinned: dict[str, str]
) -> dict[str, str | HostError]:
    """Return, by the node's name, the trusted key or the error. `pinned`: the controller's
    fingerprints."""

    async def one(host: FleetHost) -> str | HostError:
        try:
            return await trusted_key(
                host.target, host_key=host.host_key, accepted=None, pinned=pinned.get(host.name)
            )
        except HostError as error:
            return error

    keys = await asyncio.gather(*map(one, hosts))
    return {host.name: key for host, key in zip(hosts, keys, strict=True)}


def accept_keys(
    keys: dict[str, str | HostError], confirms: Callable[[str], bool], *, can_ask: bool
) -> dict[str, str | HostError]:
    """Show all unknown keys and ask about them together. Raises CliError with each host and key if
    no user can answer."""
    unknown = {name: key for name, key in keys.items() if isinstance(key, UnknownHostKey)}
    if not unknown:
        return keys
    shown = "; ".join(f"{name} ({key.host}): {key.shown}" for name, key in unknown.items())
    if not can_ask:
        raise CliError(
            f"host keys are not known: {shown}. Compare them on the hosts, then give each as "
            f"`host_key`, or put them into ~/.ssh/known_hosts"
        )
    output.note(f"these host keys are not known: {shown}")
    if not confirms("Is that what `ssh-keygen -lf` shows on these hosts?"):
        raise CliError("nothing was changed")
    return {**keys, **{name: key.preferred for name, key in unknown.items()}}


async def make_nodes(plans: Sequence[HostPlan], api: NodesApi, table: HostTable) -> list[Outcome]:
    """Make a few nodes at a time; one that fails does not delay the others."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(plan: HostPlan) -> Outcome:
        async with slots:
            try:
                result: Result = await make_node(plan, api, HostRow(plan.name, table))
            except (HostError, FairleadError) as error:
                table.tell(plan.name, f"failed: {error}")
                return Outcome(name=plan.name, error=str(error))
        table.tell(plan.name, f"ready: {'; '.join(result.changed) or 'nothing had to be changed'}")
        return Outcome(name=plan.name, changed=result.changed)

    with table.shown():
        return list(await asyncio.gather(*map(one, plans)))
