"""One execution of the user's commands: start, output, stop, limits, and how it ended.

The stop signal goes to the main process's group; the grace ends when the group is empty or the time
is over. When the main process ends by itself, the rest of its output is read, processes that it
left behind get a short time, and then everything is killed. The shim's stop order is a file that
the job can change: it is read without waiting and with a limit, and the job could only shorten its
own time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from common.files.task_folder import STOP_ORDER_NAME, StopOrder
from fairlead.wire.decoders import decoder_of
from runner import cgroup
from runner.job.outcome import (
    Interruption,
    Scope,
    Verdict,
    judge,
    last_line,
    left_behind,
    of_max_duration,
)
from runner.logs.output import Output
from runner.logs.pump import OutputPump
from runner.logs.segments import SegmentLog
from runner.processes.launch import Launch
from runner.processes.leaf import Leaf
from runner.processes.spawn import Children, Ending, JobProcess, spawn


def _is_in_setup(mark: str | None) -> bool:
    """Return whether the job has a setup that did not succeed. The file is the job's own: it can
    only choose its own message."""
    if mark is None:
        return False
    try:
        return os.lstat(mark).st_size == 0
    except OSError:
        return False


_MAX_BYTES = 1 << 10
_log = logging.getLogger(__name__)


def grace_left(task: Path, now: float) -> float | None:
    """Return the seconds of grace; None when there is no order. Blocking, but never for long."""
    try:
        order = decoder_of(StopOrder).decode(_read(task / STOP_ORDER_NAME))
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        _log.error("the grace of the stop cannot be read: %s", error)
        return None
    return max(0.0, order.kill_at - now)


def _read(path: Path) -> bytes:
    # The open of a FIFO that the job put there would else wait for a writer (fifo(7)).
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path.name} is no regular file")
        return file.read(_MAX_BYTES)


DRAIN_LIMIT = 1.0
"""Seconds in which processes that the main process left behind may end and write."""
SOON = 0.25
"""Seconds after which the main process's end is reported alone, while what it left behind is
slow."""
MainEnded = Callable[[Ending, Verdict], Awaitable[None]]


class Countdown:
    """Calls `over` after these seconds; None: never. It does not count before `start`, and while
    it is `held`."""

    def __init__(self, seconds: float | None, over: Callable[[], None]) -> None:
        self._left = seconds
        self._over = over
        self._held = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._go_on()

    def hold(self, held: bool) -> None:
        """Pause it, or continue with what is left."""
        self._held = held
        if held:
            self._pause()
        else:
            self._go_on()

    def stop(self) -> None:
        """Stop it for good."""
        self._pause()
        self._loop = None

    def _go_on(self) -> None:
        if self._loop is None or self._left is None or self._held or self._timer is not None:
            return
        self._timer = self._loop.call_later(self._left, self._over)

    def _pause(self) -> None:
        if self._loop is None or self._timer is None or self._left is None:
            return
        self._left = max(0.0, self._timer.when() - self._loop.time())
        self._timer.cancel()
        self._timer = None


class JobLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_duration: float | None
    backstop: float
    """Seconds after `max_duration` before the runner ends the job itself."""
    stop_duration: float
    """Seconds between stop signal and SIGKILL when a limit ends the job."""
    stop_signal: int
    restart_exit_code: int | None = None


class Execution:
    """One execution. Call `run` once, and `stop` any number of times, also before and after."""

    def __init__(
        self,
        log: SegmentLog,
        scope: Scope,
        children: Children,
        limits: JobLimits,
        secrets: tuple[str, ...],
        leaf: Leaf | None = None,
    ) -> None:
        self._log = log
        self._scope = scope
        self._children = children
        self._limits = limits
        self._secrets = secrets
        self._leaf = leaf
        self._process: JobProcess | None = None
        self._setup_mark: str | None = None
        self._stop_at = 0.0
        """When the stop signal is sent, on the loop's clock."""
        self._signalled: int | None = None
        """The stop signal, once the job was asked to end."""
        self._is_delivered = False
        self._kill_at: float | None = None
        self._stop_timer: asyncio.TimerHandle | None = None
        self._kill_timer: asyncio.TimerHandle | None = None
        self._main_ended = False
        self._over = False
        self._quiet = asyncio.Event()
        self._killed = asyncio.Event()
        self._main_killed = False
        self._interrupted = False
        self._enforced: Verdict | None = None
        self._countdown = self._max_duration()
        self.dirt: str | None = None
        """What the job left in its container, once it has ended; None: nothing that can be seen."""

    async def run(
        self, launch: Launch, started: Callable[[int], None], main_ended: MainEnded
    ) -> tuple[Ending, Verdict]:
        """Run the commands. Raises CannotStart.

        `started` gets the pid at once. After a stop, others may kill the process together with what
        the job has left behind. So `main_ended` gets the main process's end while the rest is still
        waited for.
        """
        self._setup_mark = launch.setup_mark
        # The counter is the cgroup's: helpers before the job may have been killed, too.
        kills_before = await asyncio.to_thread(cgroup.oom_kills)
        process = await spawn(launch, self._children, leaf=self._leaf)
        output = Output(
            self._log,
            process.stdout,
            process.stderr,
            secrets=self._secrets,
            is_terminal=launch.tty,
        )
        started(process.pid)
        return await self._attend(process, output, kills_before, main_ended)

    async def _attend(
        self, process: JobProcess, output: Output, kills_before: int, main_ended: MainEnded
    ) -> tuple[Ending, Verdict]:
        loop = asyncio.get_running_loop()
        self._process = process
        pump = OutputPump(output)
        stop_listening = self._children.on_reaped(self._look_for_the_group)
        self._countdown.start(loop)
        try:
            # A stop may have come while the process was being started.
            self._deliver()
            ending = await process.wait()
            self._main_ended = True
            self._hurry()
            if self._signalled is None:
                await self._rest_ends(pump, DRAIN_LIMIT)
            elif not await self._rest_ends(pump, SOON):
                await main_ended(ending, await self._judged(ending, output, kills_before))
                await self._rest_ends(pump, self._grace_left())
        finally:
            self._over = True
            stop_listening()
            self._countdown.stop()
            for timer in (self._stop_timer, self._kill_timer):
                if timer is not None:
                    timer.cancel()
            # First: while a process lives that writes, there is no last byte in the pipes.
            await asyncio.to_thread(self._kill_rest, process.pid)
            pump.close()
        return ending, await self._judged(ending, output, kills_before)

    def _kill_rest(self, session: int) -> None:
        leaf = self._leaf
        # A session can be left, and a parent outlived: a cgroup keeps whom it has.
        in_leaf = leaf is not None and leaf.holds_any()
        if in_leaf or left_behind(session, adopts_orphans=self._children.adopts_orphans):
            self.dirt = "a process was left"
        self._scope.kill_all(session)
        if leaf is not None and in_leaf:
            leaf.kill()

    def _looked_at(self, kills_before: int) -> tuple[bool, bool]:
        """Return whether the memory limit killed a process of the job, and whether the job is in
        its setup. Blocking."""
        kills = None if self._leaf is None else self._leaf.memory_kills()
        if kills is None:
            kills = cgroup.oom_kills() - kills_before
        return kills > 0, _is_in_setup(self._setup_mark)

    async def _judged(self, ending: Ending, output: Output, kills_before: int) -> Verdict:
        oom_killed, in_setup = await asyncio.to_thread(self._looked_at, kills_before)
        if oom_killed:
            self.dirt = "its memory limit was reached"
        elif self._signalled is not None or ending.signal is not None:
            self.dirt = "it was stopped"
        return judge(
            ending,
            oom_killed=oom_killed,
            last_line=last_line(output.stderr_tail, self._secrets),
            enforced=self._enforced,
            interruption=self._interruption(),
            in_setup=in_setup,
        )

    def _interruption(self) -> Interruption | None:
        if not self._interrupted:
            return None
        restart = self._limits.restart_exit_code
        return Interruption(restart_exit_code=restart, killed=self._main_killed)

    def enforce(self, limit: Verdict) -> None:
        """End the job for this reason, unless it has a reason or has ended."""
        if not self._main_ended and self._enforced is None:
            self._enforced = limit
            self.stop(None, self._limits.stop_duration)

    @property
    def session(self) -> int | None:
        """The session of the job's processes; None: its main process has not begun, or has
        ended."""
        process = self._process
        return None if process is None or self._main_ended or self._over else process.pid

    @property
    def last_session(self) -> int | None:
        """The same, also after its end; None: it never began."""
        return None if self._process is None else self._process.pid

    def stop(
        self,
        number: int | None,
        grace: float | None,
        *,
        interrupt: bool = False,
        delay: float = 0.0,
    ) -> None:
        """Send the signal (default: the job's stop signal) after `delay` seconds, and SIGKILL after
        `grace` seconds from now; None: never.

        A later call may bring both forward, not back. It sends only another signal: each
        reconnect of the controller repeats the stop, and many programs give up saving at a second
        SIGTERM.
        """
        stop_at = asyncio.get_running_loop().time() + max(0.0, delay)
        self._stop_at = stop_at if self._signalled is None else min(self._stop_at, stop_at)
        self._interrupted |= interrupt
        wanted = number or self._signalled or self._limits.stop_signal
        if wanted != self._signalled:
            self._signalled, self._is_delivered = wanted, False
        if grace is not None:
            at = asyncio.get_running_loop().time() + max(0.0, grace)
            if self._kill_at is None or at < self._kill_at:
                self._kill_at = at
        self._deliver()

    def _deliver(self) -> None:
        process = self._process
        if process is None or self._over or self._signalled is None:
            return
        loop = asyncio.get_running_loop()
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        if not self._is_delivered and loop.time() < self._stop_at:
            self._stop_timer = loop.call_at(self._stop_at, self._send_stop, process)
        elif not self._is_delivered:
            self._send_stop(process)
        if self._kill_at is not None:
            if self._kill_timer is not None:
                self._kill_timer.cancel()
            self._kill_timer = loop.call_at(self._kill_at, self._kill, process)

    def _send_stop(self, process: JobProcess) -> None:
        if self._signalled is None or self._is_delivered:
            return
        _log.info("stopping the job with %s", signal.Signals(self._signalled).name)
        process.signal_group(self._signalled)
        self._is_delivered = True

    def _hurry(self) -> None:
        """Send a stop signal that waits: for the main process alone it was put off."""
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        if self._process is not None:
            self._send_stop(self._process)

    def _kill(self, process: JobProcess) -> None:
        process.signal_group(signal.SIGKILL)
        self._main_killed = not self._main_ended
        self._killed.set()

    def _max_duration(self) -> Countdown:
        seconds = self._limits.max_duration
        if seconds is None:
            return Countdown(None, lambda: None)
        ends_after = seconds + self._limits.backstop
        return Countdown(ends_after, lambda: self.enforce(of_max_duration(seconds)))

    def hold_limit(self, held: bool) -> None:
        """Pause or continue `max_duration`."""
        self._countdown.hold(held)

    async def _rest_ends(self, pump: OutputPump, patience: float | None) -> bool:
        """Wait; return whether, in time, the pipes ended and, after a stop, the group is empty or
        was killed."""
        self._look_for_the_group()
        waits = {
            asyncio.ensure_future(self._rest_has_ended(pump)),
            asyncio.ensure_future(self._killed.wait()),
        }
        done, pending = await asyncio.wait(
            waits, timeout=patience, return_when=asyncio.FIRST_COMPLETED
        )
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return bool(done)

    async def _rest_has_ended(self, pump: OutputPump) -> None:
        await pump.wait_ended()
        if self._signalled is not None and self._children.adopts_orphans:
            await self._quiet.wait()

    def _grace_left(self) -> float | None:
        if self._kill_at is None:
            return None
        return max(0.0, self._kill_at - asyncio.get_running_loop().time())

    def _look_for_the_group(self) -> None:
        if self._process is not None and not self._process.group_is_alive():
            self._quiet.set()
