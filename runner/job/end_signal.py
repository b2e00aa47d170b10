"""The signal before a foreseeable end: its file, and who gets it (docs/rules.md 4.20).

Most programs die of a signal that they do not catch, and so does the shell that started them. A
signal that announces an end must not bring it, so only those processes get it that catch it, or
block it to read it (signalfd). One that waits in sigwait looks as if it did neither: the kernel
unblocks the signal for that time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from fairlead.wire.runner import SignalRequest
from runner.job.outcome import Table, process_table

SIGNAL_NAME = "signal.json"
LOOK_AGAIN = 0.5
"""Seconds between two looks for a process that catches the signal. A program may load for minutes
before it does."""
_log = logging.getLogger(__name__)


class SignalFile(msgspec.Struct, frozen=True, kw_only=True):
    """What the job reads. Times are Unix seconds of its node's clock."""

    signal: str
    cause: str
    """The reason with which the job will end, as docs/rules.md names it."""
    sent_at: float
    ends_at: float
    """When the stop signal comes."""


class EndSignals:
    """Sends one job its signals before its ends.

    `session` returns the process group and session of the job's main process; None: it has not
    begun, or is over. `say` gets a line for the job's log.
    """

    def __init__(
        self,
        task: Path,
        name: str,
        session: Callable[[], int | None],
        say: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        self._file = task / SIGNAL_NAME
        self._name = name
        self._session = session
        self._say = say
        self._now = now
        self._known: set[str] = set()
        self._sending: set[asyncio.Task[None]] = set()

    async def send(self, request: SignalRequest) -> None:
        """Write the file and send the signal; do nothing for an `id` that is known."""
        if request.id in self._known:
            return
        self._known.add(request.id)
        now = self._now()
        content = SignalFile(
            signal=self._name,
            cause=request.cause,
            sent_at=now,
            ends_at=now + request.ends_in,
        )
        try:
            await asyncio.to_thread(_write, self._file, msgspec.json.encode(content) + b"\n")
        except OSError as error:
            _log.error("%s cannot be written: %s", self._file.name, error.strerror)
        task = asyncio.create_task(self._deliver(request, content.ends_at))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def close(self) -> None:
        """Stop waiting for processes: the job has ended."""
        for task in tuple(self._sending):
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _deliver(self, request: SignalRequest, ends_at: float) -> None:
        number = signal.Signals[self._name]
        while True:
            session = self._session()
            if session is not None and await asyncio.to_thread(_signal_all, session, number):
                break
            await asyncio.sleep(LOOK_AGAIN)
        left = max(0.0, ends_at - self._now())
        self._say(f"{self._name} was sent: the job ends in {left:.0f} s ({request.cause})")


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f"{path.name}.new")
    # The folder may be the job's own, which may have left a link there: never follow it.
    unfinished.unlink(missing_ok=True)
    with open(unfinished, "xb") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(content)
    os.replace(unfinished, path)


def _signal_all(session: int, number: int) -> bool:
    """Signal the job's processes that catch it; return whether there are any."""
    sent = False
    for pid in _of_job(process_table(), session):
        try:
            if _catches(Path(f"/proc/{pid}/status").read_text("utf-8", "replace"), number):
                os.kill(pid, number)
                sent = True
        except OSError:
            continue  # it has ended meanwhile
    return sent


def _of_job(table: Table, session: int) -> set[int]:
    """Return the processes of the session, and all descendants of its leader: launchers such as
    torchrun start each worker in a session of its own."""
    found = {pid for pid, row in table.items() if row[1] == session}
    new = found
    while new:
        new = {pid for pid, row in table.items() if row[0] in new} - found
        found |= new
    return found


def _catches(status: str, number: int) -> bool:
    """Return whether the process with this /proc/PID/status catches the signal, or blocks it."""
    masks = dict(line.split(":\t", 1) for line in status.splitlines() if line.startswith("Sig"))
    caught, blocked = int(masks["SigCgt"], 16), int(masks["SigBlk"], 16)
    if caught & _bit(number):
        return True
    # While it starts a child, libc blocks all signals, and a pending one would kill it afterwards.
    return bool(blocked & _bit(number)) and not blocked & _bit(signal.SIGSEGV)


def _bit(number: int) -> int:
    return 1 << (number - 1)
