"""Gives runners leaves: cgroups below their own, one for each job of a container that carries jobs.

The shim connects to the runner through its own link, and serves it until one of them ends. A leaf
holds no limit and no state, and is named by its task, whose record comes first. A note names the
cgroups below which the task has some: a shim that was killed leaves nothing for ever.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec

from common.processes.leaves import (
    BEGIN,
    MAX_LEAVES,
    MAX_LINE,
    LeafOrder,
    LeafSupply,
    line_of,
)
from common.threads import to_the_end
from shim.node.cgroups import (
    CgroupTree,
    Place,
    TaskLeaves,
    prefix_of,
    remove_leaves,
)
from shim.state import records
from shim.tasks.steps.base import StepContext

HELLO_SECONDS = 5.0
"""Seconds within which a runner answers; its job is not started before."""
_PAUSE = 0.02
"""Seconds between two orders of a runner: a job that impersonates it could else keep this busy."""
_END_SECONDS = 0.5
"""Seconds for which killed processes of an ended task are waited for."""
_CREDENTIALS = struct.Struct("3i")
_MAX_THERE = MAX_LEAVES + 2
"""Leaves of one task that are there at once: those that wait, a job's, and one with a process that
a job has left."""
log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


class LeafGiver:
    """The connection to one runner."""

    def __init__(self, ctx: StepContext, way: socket.socket, leaves: TaskLeaves) -> None:
        self._ctx = ctx
        self._way = way
        self._leaves = leaves
        self._received = b""
        self._next = 0
        self._there: set[int] = set()
        """Leaves that are made and not removed: the kernel has 65,535 ids for all of a node."""
        self._ended: set[int] = set()

    @classmethod
    async def connect(cls, ctx: StepContext) -> LeafGiver | None:
        """Connect to the runner of a task that carries jobs; None: it gets no leaves."""
        way = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                giver = await cls._greeted(ctx, way)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("task %s: its jobs get no cgroup each: %s", ctx.task.info.id, error)
            giver = None
        except BaseException:
            # Also when it is cancelled: nobody else has this socket yet.
            way.close()
            raise
        if giver is None:
            way.close()
        return giver

    @classmethod
    async def _greeted(cls, ctx: StepContext, way: socket.socket) -> LeafGiver | None:
        loop, task = asyncio.get_running_loop(), ctx.task.info
        await loop.sock_connect(way, task.runner_socket)
        places = await _in_thread(ctx, _places_of_peer, ctx, way)
        await loop.sock_sendall(way, BEGIN)
        giver = cls(ctx, way, TaskLeaves(ctx.cgroups, places, task.id))
        # It answers now, so it lived when its place was looked up, and its pid was no other's.
        hello = await giver._order()
        if hello is None:
            raise ConnectionError("its runner takes none")
        if (why := await _in_thread(ctx, ctx.cgroups.why_none, places)) is not None:
            log.info("task %s: its jobs get no cgroup each: %s", task.id, why)
            _send(way, LeafSupply(), [])
            return None
        await _in_thread(ctx, _note, ctx.settings.leaves_folder, task.id, places)
        await giver._begin(hello)
        return giver

    async def serve(self) -> None:
        """Bring what the runner orders until it ends."""
        try:
            while (order := await self._order()) is not None:
                await self._fulfil(order)
                await asyncio.sleep(_PAUSE)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("task %s: no more leaves: %s", self._ctx.task.info.id, error)
        finally:
            self.close()

    def close(self) -> None:
        self._way.close()

    async def _begin(self, hello: LeafOrder) -> None:
        await _in_thread(self._ctx, self._leaves.remove_all, frozenset(hello.holds))
        self._there = await _in_thread(self._ctx, self._leaves.numbers)
        # A number that is no leaf's name would make one that no removal finds.
        self._next = 1 + max((*hello.holds, *self._there), default=-1)
        if self._next < 0:
            raise ConnectionError("its runner holds leaves with numbers below 0")
        await _in_thread(self._ctx, self._give_home)

    def _give_home(self) -> None:
        # Opened and sent in one thread: nobody takes what is opened for a cancelled task.
        home = self._leaves.open_home()
        _send(self._way, LeafSupply(home=len(home)), home)

    async def _order(self) -> LeafOrder | None:
        """Return the next order; None: the runner is gone, or no runner of this version."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._received:
            some = await loop.sock_recv(self._way, MAX_LINE)
            if not some or len(self._received) > MAX_LINE:
                return None
            self._received += some
        line, _, self._received = self._received.partition(b"\n")
        return msgspec.json.decode(line, type=LeafOrder)

    async def _fulfil(self, order: LeafOrder) -> None:
        wanted = range(self._next, self._next + min(max(order.want, 0), MAX_LEAVES))
        self._next = wanted.stop
        await _in_thread(self._ctx, self._remove_and_make, order.ended, wanted)

    def _remove_and_make(self, ended: tuple[int, ...], wanted: range) -> None:
        # Those in which a process was, which may have exited meanwhile, once more.
        self._ended |= self._there.intersection(ended)
        for number in sorted(self._ended):
            if self._leaves.remove(number):
                self._there.discard(number)
            else:
                log.info("task %s: leaf %s has a process", self._ctx.task.info.id, number)
        self._ended &= self._there
        if not wanted:
            return
        if len(self._there) + len(wanted) > _MAX_THERE:
            raise ConnectionError(f"its runner wants more than {_MAX_THERE} leaves at once")
        self._there.update(wanted)
        try:
            files, fds = self._leaves.make(wanted)
        except OSError:
            _send(self._way, LeafSupply(), [])
            raise
        _send(self._way, LeafSupply(numbers=tuple(wanted), files=files), fds)


def _send(way: socket.socket, supply: LeafSupply, fds: list[int]) -> None:
    """Send the descriptors, and close them here. Raises OSError, also where it would block."""
    try:
        socket.send_fds(way, [line_of(supply)], fds)
    finally:
        for fd in fds:
            os.close(fd)


def _places_of_peer(ctx: StepContext, way: socket.socket) -> tuple[Place, ...]:
    """Return the runner's places. Raises ConnectionError for those of another container."""
    # The credentials are those of the process that called listen(2), with its pid here. A job may
    # have called it again, and the pid may be another's by now: they prove no place.
    raw = way.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, _, _ = _CREDENTIALS.unpack(raw)
    # 0: it is in a pid namespace that this one does not see.
    found = ctx.cgroups.places(pid) if pid else ()
    places = _of_container(ctx, found)
    if found and not places:
        raise ConnectionError("who listens is outside of its container's cgroup")
    return places


def _of_container(ctx: StepContext, places: tuple[Place, ...]) -> tuple[Place, ...]:
    # With hierarchies of both versions, an engine may leave all containers in one's root.
    container_id = ctx.task.info.container_id
    if container_id is None:
        return ()
    if roots := ctx.engine.cgroups(container_id):
        return tuple(place for place in places if any(map(place.is_within, roots)))
    first = ctx.engine.first_process(container_id)
    own = ctx.cgroups.places(first) if first is not None else ()
    return tuple(place for place in places if place in own)


class Leaves:
    async def do(self, ctx: StepContext) -> None:
        """Do nothing: the runner orders leaves for its jobs."""

    async def undo(self, ctx: StepContext) -> None:
        """Remove all leaves of the task, whose processes have ended."""
        if ctx.task.request.carries_jobs:
            folder = ctx.settings.leaves_folder
            await _in_thread(ctx, _remove_noted, folder, ctx.cgroups, ctx.task.info.id)


def remove_strays(notes: Path, tree: CgroupTree, known: Iterable[str]) -> None:
    """Remove leaves of tasks that are gone, after a crash: those that the notes of this shim's
    folder name, and so none of another shim. Blocking."""
    wanted = set(known)
    for path in notes.iterdir() if notes.is_dir() else ():
        if path.name not in wanted:
            _remove_noted(notes, tree, path.name)


def _remove_noted(notes: Path, tree: CgroupTree, task_id: str) -> None:
    places = _noted(notes, task_id)
    ends_at = time.monotonic() + _END_SECONDS
    while not _is_removed(tree, places, task_id):
        # A process of it has been killed, and has not ended.
        if time.monotonic() > ends_at:
            log.warning("a cgroup of task %s is not removed yet: a later shim does it", task_id)
            return
        time.sleep(_PAUSE)
    notes.joinpath(task_id).unlink(missing_ok=True)


def _is_removed(tree: CgroupTree, places: tuple[Place, ...], task_id: str) -> bool:
    try:
        return remove_leaves(tree, places, prefix_of(task_id))
    except OSError as error:
        # EROFS, EPERM: it is mounted read-only now. A later shim may be able to, so the note stays.
        log.warning("the cgroups of task %s stay: %s", task_id, error)
        return False


def _note(notes: Path, task_id: str, places: tuple[Place, ...]) -> None:
    """Note the places before the first leaf. Without fsync: no cgroup outlives a power cut."""
    both = dict.fromkeys((*_noted(notes, task_id), *places))
    notes.mkdir(parents=True, exist_ok=True, mode=0o700)
    records.write_note(notes / task_id, msgspec.json.encode(tuple(both)))


def _noted(notes: Path, task_id: str) -> tuple[Place, ...]:
    path = notes / task_id
    try:
        return msgspec.json.decode(records.read_file(path), type=tuple[Place, ...])
    except FileNotFoundError:
        return ()
    except (OSError, records.DamagedFile, msgspec.DecodeError) as error:
        log.error("%s cannot be read: %s", path, error)
        return ()


async def _in_thread(ctx: StepContext, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Wait for its end also when cancelled: the task's leaves and note may be removed next."""
    loop = asyncio.get_running_loop()
    return await to_the_end(loop.run_in_executor(ctx.executor, partial(act, *args, **kwargs)))
