"""The shim's end of its fork server: starts it, asks it for processes, and hears how they ended.

A fork server that dies, or does not answer, costs a task nothing but time: the task is started
without it, and the next task gets a new one. Everything here blocks.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from common.processes import reaper
from common.processes.fork_server import (
    MAX_MESSAGE,
    Ended,
    Forked,
    ForkRequest,
    NotForked,
    ServerMessage,
)

ANSWER_SECONDS = 5.0
"""Seconds within which it answers, also while it loads."""
MAX_FAILURES = 3
"""After this number of fork servers in a row that forked nothing, no other is started."""
# A forked process writes its own over the server's, in the memory that /proc shows.
_ROOM_FOR_ENVIRONMENT = 16 << 10
_ROOM_FOR_COMMAND = 2 << 10
_ROOM = "FAIRLEAD_ROOM"
_END_SECONDS = 2.0
_decode: Callable[[bytes], ServerMessage] = msgspec.json.Decoder(ServerMessage).decode
log = logging.getLogger(__name__)


class ForkServerLost(Exception):
    """It died, or was killed, before it answered: the processes may run."""


class ForkServer:
    def __init__(self, env: Mapping[str, str], output: Path) -> None:
        """`env`: the environment of tasks, but for what each has of its own. `output`: a file for
        what it prints."""
        self._env = env
        self._output = output
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0
        self._failures = 0
        self._children: set[int] = set()
        self._codes: dict[int, int] = {}

    @property
    def pid(self) -> int | None:
        return None if self._socket is None else self._pid

    def start(self) -> None:
        """Start it if it does not run, without waiting until it has loaded."""
        with self._lock:
            self._start()

    def fork(self, request: ForkRequest) -> int | None:
        """Return the pid of the task's reaper; None: start it without this server. Raises
        ForkServerLost."""
        message = _packed(request)
        with self._lock:
            self._start()
            if self._socket is None or message is None:
                return None
            try:
                self._socket.send(message)
                answer = self._answer(time.monotonic() + ANSWER_SECONDS)
            except OSError as error:
                self._give_up(error)
                raise ForkServerLost from error
            if isinstance(answer, NotForked):
                log.warning("the fork server starts no task: %s", answer.error)
                return None
            self._failures = 0
            self._children.add(answer.pid)
            return answer.pid

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of a reaper that has ended; None: nobody knows it."""
        with self._lock:
            until = time.monotonic() + ANSWER_SECONDS
            # A server that is gone reaps nobody: then only the exit record tells the code.
            with suppress(OSError):
                while pid in self._children and pid not in self._codes and self._socket is not None:
                    self._receive(until)
            self._children.discard(pid)
            return self._codes.pop(pid, None)

    def close(self) -> None:
        """End it; what it has forked lives on."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
                self._wait_for_its_end()

    def _start(self) -> None:
        if self._socket is not None or self._failures >= MAX_FAILURES:
            return
        # It keeps messages apart, and tells when the other end is gone (unix(7)).
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self._pid = self._spawn(theirs)
        except OSError as error:
            ours.close()
            self._failures = MAX_FAILURES
            log.warning("tasks start without a fork server: %s", error)
            return
        self._socket = ours
        self._failures += 1  # until it has forked something

    def _spawn(self, theirs: socket.socket) -> int:
        room = {_ROOM: "x" * _ROOM_FOR_ENVIRONMENT}
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "entrypoint.fork_server", "x" * _ROOM_FOR_COMMAND],
            {**self._env, **room},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self._output), flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=reaper.HANDLED,
            # Python ignores these two, and execve(2) hands that on; programs expect the defaults.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )

    def _answer(self, until: float) -> Forked | NotForked:
        while True:
            received = self._receive(until)
            if not isinstance(received, Ended):
                return received

    def _receive(self, until: float) -> ServerMessage:
        """Return the next message; an end is noted. Raises OSError."""
        assert self._socket is not None
        self._socket.settimeout(max(0.001, until - time.monotonic()))
        message = self._socket.recv(MAX_MESSAGE)
        if not message:
            self._give_up(ConnectionResetError("it has ended"))
            raise ConnectionResetError
        decoded = _decode(message)
        if isinstance(decoded, Ended) and decoded.pid in self._children:
            self._codes[decoded.pid] = decoded.code
        return decoded

    def _give_up(self, why: OSError) -> None:
        if self._socket is None:
            return
        log.warning("the fork server is given up (%s); see %s", why, self._output)
        self._socket.close()
        self._socket = None
        # Nobody tells how these end: the next server has not forked them.
        self._children.clear()
        # It may only be slow: it must not fork what is started without it.
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._wait_for_its_end()

    def _wait_for_its_end(self) -> None:
        until = time.monotonic() + _END_SECONDS
        # ECHILD: it was reaped before (waitpid(2)).
        with suppress(ChildProcessError):
            while os.waitpid(self._pid, os.WNOHANG)[0] == 0:
                if time.monotonic() > until:
                    os.kill(self._pid, signal.SIGKILL)
                time.sleep(0.001)


def _packed(request: ForkRequest) -> bytes | None:
    """Return the message; None when it does not fit, or a name or value is no Unicode."""
    try:
        message = msgspec.json.encode(request)
    except UnicodeEncodeError:
        return None
    return message if len(message) <= MAX_MESSAGE else None
