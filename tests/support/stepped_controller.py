"""`fairlead`, killed at a chosen step of a machine's life: before or after each commit about a
machine, and each call to a provider.

Each step is appended to the file that STEPS names. When the first line of the file that WANTED
names is that step, the file is removed and the process killed, as by kill -9.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from controller.clouds.base import Cloud
from controller.daemon import providers
from controller.lifecycle.machines.model import Machine, MachineStatus
from controller.store.base import Changes
from controller.store.sql import SqlStore
from fairlead.cli.main import main

STEPS, WANTED = "FAIRLEAD_STEPS", "FAIRLEAD_WANTED_STEP"
LIST = "list_tagged"
"""It is called now and then, whatever a machine does."""
_CALLS = ("create", "describe", LIST, "terminate")
_known: dict[str, Machine] = {}


def state_of(machine: Machine) -> str:
    """Return what calls about the machine depend on, in words."""
    if machine.status is MachineStatus.PROVISIONING and machine.instance_id is None:
        return "ordered" if machine.account is None else "ordered in its account"
    if machine.status is MachineStatus.JOINED:
        idle = "busy" if machine.idle_since is None else "idle"
        return "closing" if machine.closing else idle
    return machine.status.value


def step(what: str) -> None:
    """Note this step, and die there if it is the wanted one."""
    with Path(os.environ[STEPS]).open("a") as steps:
        steps.write(f"{what}\n")
    wanted = Path(os.environ[WANTED])
    if wanted.exists() and wanted.read_text().strip() == what:
        wanted.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def _stepped(name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def stepped(*given: Any) -> Any:
        live = [one for one in _known.values() if one.is_live]
        about = f"{name}, {state_of(live[-1])}" if live and name != LIST else name
        step(f"before {about}")
        found = await call(*given)
        step(f"after {about}")
        return found

    return stepped


def _watched(cloud: Cloud) -> Cloud:
    for name in _CALLS:
        setattr(cloud, name, _stepped(name, getattr(cloud, name)))
    return cloud


def install() -> None:
    commit, make = SqlStore.commit, providers.make_cloud

    async def stepped_commit(store: SqlStore, changes: Changes) -> None:
        moved = []
        for machine in changes.machines.values():
            before = _known.get(machine.id)
            old, new = "none" if before is None else state_of(before), state_of(machine)
            if old != new:
                moved.append(f"commit, {old} to {new}")
        for what in moved:
            step(f"before {what}")
        await commit(store, changes)
        _known.update(changes.machines)
        for what in moved:
            step(f"after {what}")

    load = SqlStore.load

    async def noted_load(store: SqlStore) -> Any:
        snapshot = await load(store)
        _known.update((one.id, one) for one in snapshot.machines)
        return snapshot

    store: Any = SqlStore
    store.commit, store.load = stepped_commit, noted_load
    setattr(providers, make.__name__, lambda *given: _watched(make(*given)))


if __name__ == "__main__":
    install()
    main()
