"""Network namespaces: the engine's, in which the node's ends of wires lie, and containers'."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from ipaddress import IPv4Network, IPv6Address
from pathlib import Path
from typing import NamedTuple, TypeVar

from shim.errors import EngineError
from shim.wires import netlink
from shim.wires.rtnetlink import Request

ROUTES, ROUTES6 = "/proc/net/route", "/proc/net/ipv6_route"
_EVERYWHERE6 = "0" * 32
_NO_DEVICES = frozenset({"lo", "*"})
"""The kernel names them for routes to nowhere, by IPv6 and by IPv4."""
_OWN = "/proc/self/ns/net"
_SECONDS = 20.0
_PEER = struct.Struct("3i")
_CLONE_NEWNET = 0x40000000
"""Of linux/sched.h."""
T = TypeVar("T")


class WireError(EngineError):
    """A wire, or what it needs on the node, cannot be made; the message says why."""


class AddressTaken(WireError):
    """There is a route to the wire's address already."""


class ProcessEnded(WireError):
    """The container's first process is gone, and with it the container."""


class AlreadyThere(WireError):
    """The kernel has something of this name, or to this address, already."""


class Route(NamedTuple):
    device: str
    to: IPv4Network


class Namespace:
    """The network namespace of an engine, in which commands run. Blocking.

    `command`: what goes before a command to run it there; nothing if it is this process's own.
    `fds`: the descriptors that `command` names.
    """

    def __init__(self, command: Sequence[str] = (), fds: Sequence[int] = ()) -> None:
        self._command = tuple(command)
        self._fds = tuple(fds)

    @classmethod
    def of_engine(cls, engine_socket: str) -> Namespace:
        """Return the namespace of the engine that listens on this unix socket.

        The kernel tells the process that called listen(2): with socket activation that is systemd,
        whose namespace is the engine's too. Raises WireError.
        """
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(_SECONDS)
                client.connect(engine_socket)
                # Of the process that called listen(2) there (unix(7)).
                peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            path = f"/proc/{_PEER.unpack(peer)[0]}/ns/net"
            if _same(path, _OWN):
                return cls()
            # Kept, because the engine may be restarted as another process.
            held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise WireError(f"the engine's network namespace is unknown: {error}") from None
        return cls(("nsenter", f"--net=/proc/self/fd/{held}"), (held,))

    def close(self) -> None:
        """Let go of the namespace, which is not used again."""
        for held in self._fds:
            os.close(held)
        self._fds = ()

    def run(self, *argv: str, given: str = "") -> str:
        """Run a command to its end and return its output. Raises WireError with what it said."""
        whole = [*self._command, *argv]
        try:
            done = subprocess.run(
                whole,
                input=given,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                pass_fds=self._fds,
                check=False,
            )
        except FileNotFoundError as error:
            raise WireError(f"{error.filename} is not installed on this node") from None
        # No room for a process: TasksMax or MemoryMax of the unit.
        except OSError as error:
            raise WireError(f"{argv[0]} cannot be started: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise WireError(f"{argv[0]} did not end in {_SECONDS:.0f} s") from None
        if done.returncode != 0:
            raise WireError(f"{' '.join(argv[:2])}: {done.stderr.strip() or 'failed'}")
        return done.stdout

    def start(self, *argv: str, given: str) -> subprocess.Popen[str]:
        """Start a command that goes on until its input ends; `given` is the input's beginning.
        Raises WireError."""
        nobody = subprocess.DEVNULL
        try:
            started = subprocess.Popen(
                [*self._command, *argv],
                stdin=subprocess.PIPE,
                stdout=nobody,
                stderr=nobody,
                text=True,
                pass_fds=self._fds,
            )
        except OSError as error:
            raise WireError(f"{argv[0]} cannot be started: {error.strerror}") from None
        assert started.stdin is not None
        # A program that has ended already is found by what it did not do.
        with suppress(BrokenPipeError):
            started.stdin.write(given)
            started.stdin.flush()
        return started

    def answers(self, *argv: str) -> bool:
        """Return whether the command succeeds."""
        with suppress(WireError):
            self.run(*argv)
            return True
        return False

    def read(self, path: str) -> str:
        """Return a file below /proc/net, which shows each process its own namespace's. Raises
        WireError."""
        if self._command:
            return self.run("cat", path)
        try:
            return Path(path).read_text(errors="replace")
        except OSError as error:
            raise WireError(f"{path} cannot be read: {error.strerror}") from None

    def devices(self) -> list[str]:
        """Return the names of the network devices. Raises WireError."""
        # Two lines of headings; a program that lists them would cost each start some milliseconds.
        lines = self.read("/proc/net/dev").splitlines()[2:]
        return [line.partition(":")[0].strip() for line in lines]

    def sends(self, device: str) -> bool:
        """Return whether the kernel sends what the device gets: it drops all until it has noticed,
        in its own time, that the other end of a veth is up. Raises WireError."""
        # The flags of netdevice(7) say that a new device runs before the kernel has looked at it.
        try:
            state = _in_namespace(self._path(), lambda: netlink.state_of(device))
        except OSError as error:
            raise WireError(f"{device} cannot be looked at: {error.strerror}") from None
        return state == netlink.UP

    def takes(self, address: IPv6Address) -> bool:
        """Return whether the kernel takes what is sent to this address of its own: it makes the
        route for that in its own time. Raises WireError."""
        try:
            return _in_namespace(self._path(), lambda: netlink.is_local(address))
        except OSError as error:
            raise WireError(f"{address} cannot be looked at: {error.strerror}") from None

    def change(self, requests: Iterable[Request]) -> None:
        """Have the kernel make these changes here, one after the other. Raises WireError with the
        one that it refused."""
        try:
            _in_namespace(self._path(), lambda: netlink.change(requests))
        except FileExistsError as error:
            raise AlreadyThere(f"{error.filename}: {error.strerror}") from None
        except OSError as error:
            raise WireError(f"{error.filename or 'netlink'}: {error.strerror}") from None

    def forget(self, is_stale: Callable[[bytes], bool]) -> int:
        """Remove the connections that stale addresses began from the kernel's table; return how
        many. Raises WireError."""
        try:
            return _in_namespace(self._path(), lambda: netlink.forget(is_stale))
        except OSError as error:
            why = error.strerror or error
            raise WireError(f"ended connections are not removed: {why}") from None

    def routes(self, path: str = ROUTES, devices: str = "") -> list[Route]:
        """Return the IPv4 routes over devices whose names begin with `devices`. Raises
        WireError."""
        words = (line.split() for line in self.read(path).splitlines()[1:])
        # A start asks for those of wires: to parse all others would cost it a millisecond or more.
        return [_route(one) for one in words if one[0].startswith(devices)]

    def uplinks(self) -> frozenset[str]:
        """Return the devices with a default route, by IPv4 or IPv6. Raises WireError."""
        found = {one.device for one in self.routes() if one.to.prefixlen == 0}
        # A kernel without IPv6 has no such file.
        with suppress(WireError):
            words = (line.split() for line in self.read(ROUTES6).splitlines())
            found.update(one[9] for one in words if one[1] == "00" and one[0] == _EVERYWHERE6)
        return frozenset(found - _NO_DEVICES)

    def write(self, path: str, value: str) -> None:
        """Write a setting below /proc/sys/net, which shows each process its own namespace's. Raises
        WireError."""
        if self._command:
            self.run("tee", path, given=value)
            return
        try:
            Path(path).write_text(value)
        except OSError as error:
            raise WireError(f"{path} cannot be written: {error.strerror}") from None

    def rules_that_go(self) -> socket.socket:
        """Return a socket that hears of each change of nftables here. Raises OSError."""
        return _in_namespace(self._path(), netlink.changes_of_nftables)

    @contextmanager
    def entered(self, pid: int) -> Iterator[tuple[Namespace, int]]:
        """Yield the namespace of the process, and the descriptor that keeps it.

        Raises ProcessEnded, and WireError when it has no namespace of its own: nothing may be wired
        into the node's.
        """
        try:
            held = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        # A process that waits to be reaped has none any more (namespaces(7)).
        except (FileNotFoundError, ProcessLookupError):
            raise ProcessEnded(f"process {pid} has ended") from None
        except OSError as error:
            raise WireError(f"process {pid} has no network namespace: {error.strerror}") from None
        try:
            path = f"/proc/self/fd/{held}"
            if _same(path, _OWN) or _same(path, self._path()):
                raise WireError(f"process {pid} is in the network namespace of the node")
            yield type(self)(("nsenter", f"--net={path}"), (held,)), held
        finally:
            os.close(held)

    def _path(self) -> str:
        return self._command[1].partition("=")[2] if self._command else _OWN


def _route(words: Sequence[str]) -> Route:
    """Return the route of a line of /proc/net/route."""
    return Route(
        words[0], IPv4Network((_number(words[1]), _number(words[7]).bit_count()), strict=False)
    )


def _number(text: str) -> int:
    """Return the address that the kernel writes in hexadecimal digits, in its own byte order."""
    return int.from_bytes(struct.pack("=L", int(text, 16)), "big")


def _in_namespace(path: str, act: Callable[[], T]) -> T:
    """Do something in a network namespace. A socket stays in the namespace where it was made."""
    if path == _OWN or _same(path, _OWN):
        return act()

    # Only engines in a namespace of their own need it.
    import ctypes

    def enter_and_act() -> T:
        with open(path) as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"{path} cannot be entered")
        return act()

    # setns(2) moves one thread, which is not used again.
    with ThreadPoolExecutor(1) as once:
        return once.submit(enter_and_act).result()


def _same(one: str, other: str) -> bool:
    # These two numbers identify a namespace (namespaces(7)).
    first, second = os.stat(one), os.stat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
