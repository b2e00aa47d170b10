"""The leaves that wait for the jobs of a container, and the connection on which the shim brings
them.

A carried job never waits for a round trip: the next leaves are asked for while there still are
some. The container's own job asks for one while it is prepared. A runner without leaves goes on as
before, with its container's cgroup for all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import msgspec

from common.processes.leaves import (
    MAX_LEAVES,
    MAX_LINE,
    LeafOrder,
    LeafSupply,
    line_of,
)
from runner.processes.leaf import Leaf

PATIENCE = 2.0
"""Seconds that a job waits for its leaf, if the shim has said that there are some."""
_REFILL = MAX_LEAVES // 2
_MAX_FDS = 253
"""The kernel's limit for one message (unix(7))."""
_log = logging.getLogger(__name__)


class Leaves(Protocol):
    """Where each job of a container gets its leaf."""

    def want_one(self) -> None:
        """Have one ready soon, for the container's own job: none may come after it."""

    def keep_ready(self) -> None:
        """Have some ready soon: jobs will be carried."""

    async def take(self) -> Leaf | None:
        """Return a leaf that no job has had; None: there are none here."""

    def ended(self, leaf: Leaf) -> None:
        """Give it back: its job has ended."""

    def close(self) -> None:
        """Give all back."""


class SuppliedLeaves:
    """The leaves that the node's shim brings."""

    def __init__(self) -> None:
        self._link: LeafLink | None = None
        self._free: deque[Leaf] = deque()
        self._held: set[int] = set()
        self._ended: list[int] = []
        self._home: tuple[int, ...] = ()
        self._wants_one = False
        self._keeps_ready = False
        self._asked = 0
        self._came = asyncio.Event()

    def make_protocol(self) -> asyncio.Protocol:
        return LeafLink(self)

    def want_one(self) -> None:
        self._wants_one = True
        self._ask()

    def keep_ready(self) -> None:
        self._keeps_ready = True
        self._ask()

    async def take(self) -> Leaf | None:
        self._wants_one = False
        if not self._free and self._asked:
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._came.wait()
            except TimeoutError:
                _log.warning("the shim brings no leaves")
                self._drop_link()
        if not self._free:
            return None
        leaf = self._free.popleft()
        self._held.add(leaf.number)
        return leaf

    def ended(self, leaf: Leaf) -> None:
        leaf.close()
        self._held.discard(leaf.number)
        self._ended.append(leaf.number)
        self._ask()

    def close(self) -> None:
        self._drop_link()
        self._drop_free()
        for fd in self._home:
            os.close(fd)
        self._home = ()

    # -- the connection's side -----------------------------------------------------------------

    def came(self, link: LeafLink) -> None:
        """Go on with this one: the shim has started again. It removes what no job holds."""
        self._drop_link()
        self._drop_free()
        self._link = link
        self._ended.clear()
        link.say(LeafOrder(holds=tuple(self._held)))
        self._ask()

    def left(self, link: LeafLink) -> None:
        if link is self._link:
            self._link, self._asked = None, 0
            self._came.set()

    def supplied(self, supply: LeafSupply, fds: Sequence[int]) -> None:
        """Take what the shim brings. Raises ValueError when descriptors are missing."""
        each = len(supply.files)
        if len(fds) != supply.home + each * len(supply.numbers):
            raise ValueError(f"{len(fds)} descriptors came with {supply}")
        home = tuple(fds[: supply.home])
        if self._home:
            # Of an earlier shim: a start in another thread may be about to use them.
            for fd in home:
                os.close(fd)
        else:
            self._home = home
        for place, number in enumerate(supply.numbers):
            some = fds[supply.home + place * each : supply.home + (place + 1) * each]
            self._free.append(Leaf(number, list(zip(supply.files, some, strict=True)), self._home))
        if supply.numbers:
            self._asked = 0
            self._came.set()
        elif not supply.home:
            # This node has none.
            self._drop_link()

    def _ask(self) -> None:
        if self._link is None or self._asked:
            return
        if self._keeps_ready and len(self._free) <= _REFILL:
            self._asked = MAX_LEAVES - len(self._free)
        elif self._wants_one and not self._free:
            self._asked = 1
        else:
            return
        self._came.clear()
        self._link.say(LeafOrder(want=self._asked, ended=tuple(self._ended)))
        self._ended.clear()

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self.left(self._link)

    def _drop_free(self) -> None:
        while self._free:
            self._free.popleft().close()


class LeafLink(asyncio.Protocol):
    """The runner's end of the shim's connection."""

    def __init__(self, leaves: SuppliedLeaves) -> None:
        self._leaves = leaves
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._line = b""
        self._fds: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # The transport would read the lines, and leave the descriptors that come with them.
        transport.pause_reading()
        # asyncio lets nobody watch a transport's own descriptor.
        number = os.dup(transport.get_extra_info("socket").fileno())
        self._socket = socket.socket(fileno=number)
        asyncio.get_running_loop().add_reader(number, self._read)

    def data_received(self, data: bytes) -> None:
        """Take the first bytes: the shim waits for an answer to them."""
        self._leaves.came(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close()

    def say(self, order: LeafOrder) -> None:
        if self._transport is not None:
            self._transport.write(line_of(order))

    def close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        self._leaves.left(self)

    def _read(self) -> None:
        assert self._socket is not None
        # No program that is started meanwhile may inherit what comes (recvmsg(2)).
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, MAX_LINE, _MAX_FDS, flags)
        except BlockingIOError:
            return
        except OSError:
            # ECONNRESET: the shim ended before it had read all that was sent.
            self.close()
            return
        self._fds += fds
        self._line += data
        if not data or len(self._line) > MAX_LINE:
            self.close()
        elif self._line.endswith(b"\n"):
            self._take()

    def _take(self) -> None:
        line, self._line = self._line, b""
        try:
            self._leaves.supplied(msgspec.json.decode(line, type=LeafSupply), self._fds)
        except (msgspec.DecodeError, ValueError) as error:
            _log.error("what the shim brings cannot be used: %s", error)
            self.close()
        else:
            self._fds.clear()
