"""One task in the shim's memory, and the only way to change it.

A change is numbered, made durable, and only then announced, so that a crash takes back nothing that
was announced.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import msgspec

from fairlead.wire.shim import RegistryAuth, TaskInfo, TaskRequest, TaskStatus, TaskTimes
from shim.state.events import EventLog
from shim.state.records import Records, StopRecord, TaskRecord

log = logging.getLogger(__name__)
_MAX_WORDS = 500


class TaskState:
    """One task. `auth` holds the pull's credentials, in memory only."""

    def __init__(
        self,
        record: TaskRecord,
        records: Records[TaskRecord],
        events: EventLog,
        auth: RegistryAuth | None = None,
    ) -> None:
        self.record = record
        self.auth = auth
        self.credentials_came = asyncio.Event()
        self.stop_wanted = asyncio.Event()
        self.stop_hurried = asyncio.Event()
        self.removing = asyncio.Lock()
        self.left_run = False
        """Whether its removal has passed what it shared with other tasks of its run."""
        self.driver: asyncio.Task[None] | None = None
        self._records = records
        self._events = events
        self._noted: dict[str, Any] = {}
        if record.stop is not None:
            self.stop_wanted.set()

    @property
    def info(self) -> TaskInfo:
        return self.record.info

    @property
    def coming(self) -> TaskInfo:
        """The task with what is noted, which is neither stored nor announced yet."""
        return msgspec.structs.replace(self.info, **self._noted)

    @property
    def request(self) -> TaskRequest:
        return self.record.request

    @property
    def ended(self) -> bool:
        return self.info.status is TaskStatus.TERMINATED

    async def enter(self, status: TaskStatus, **changes: Any) -> None:
        """Move to `status` and record the time. Raises OSError when that cannot be made durable."""
        await self.change(status=status, times=self._times_with(status), **changes)
        self._log_status()

    def show_status(self, status: TaskStatus) -> None:
        """Move to `status`, record the time, and announce both before they are stored.

        For a status that promises nothing of what comes next: after a crash before the next write,
        the next life finds out from records and containers how far the task was.
        """
        self.show(status=status, times=self._times_with(status))
        self._log_status()

    def _times_with(self, status: TaskStatus) -> TaskTimes:
        return msgspec.structs.replace(self.info.times, **{f"{status.value}_at": time.time()})

    def _log_status(self) -> None:
        """Log the status for the operator; of the job's data only the image appears."""
        info = self.info
        about = {
            TaskStatus.PULLING: f"image {info.image}",
            TaskStatus.TERMINATED: _how_it_ended(info),
        }.get(info.status)
        log.info("task %s: %s%s", info.id, info.status, f": {_readable(about)}" if about else "")

    def note(self, **changes: Any) -> None:
        """Note changes for the next record: they are stored and announced with it, and not before.

        So the steps before a container is made need one record. A crash takes back what nobody has
        heard of.
        """
        self._noted.update(changes)

    async def change(self, **changes: Any) -> None:
        noted, self._noted = self._noted, {}
        self._apply(**noted | changes)
        # What is stored is what is announced: the task may change again during the write.
        info = self.info
        await self._records.save(info.id, self.record)
        self._events.task_changed(info)

    def show(self, **changes: Any) -> None:
        """Announce a change that need not survive a crash (progress)."""
        self._apply(**changes)
        self._events.task_changed(self.info)

    async def enter_at_last(self, status: TaskStatus, **changes: Any) -> bool:
        """Enter a status that has already happened: it is announced even when it cannot be stored.

        Return whether it was stored. If not, after a crash the next life finds it out again.
        """
        try:
            await self.enter(status, **changes)
        except OSError as error:
            self._log_status()
            log.error("cannot store that task %s is %s: %s", self.info.id, status, error)
            self._events.task_changed(self.info)
            return False
        return True

    async def finish(self, **changes: Any) -> bool:
        return await self.enter_at_last(
            TaskStatus.TERMINATED, pull=None, needs_credentials=False, **changes
        )

    async def keep(self) -> bool:
        """Store the announced state; return whether it is on disk now."""
        try:
            await self._records.save(self.info.id, self.record)
        except OSError:
            return False
        return True

    async def order_stop(self, grace: float, reason: str | None, message: str | None) -> None:
        """Order the stop. The first reason stays; the deadline only moves closer. Raises OSError.

        The task is stopped even when the order cannot be stored: otherwise a full disk could not be
        emptied.
        """
        known = self.record.stop
        kill_at = time.time() + grace if grace > 0 else 0.0
        if known is None:
            order = StopRecord(kill_at=kill_at, reason=reason, message=message)
        else:
            order = msgspec.structs.replace(known, kill_at=min(kill_at, known.kill_at))
        self.record = msgspec.structs.replace(self.record, stop=order)
        try:
            await self._records.save(self.info.id, self.record)
        finally:
            self.stop_hurried.set()
            self.stop_wanted.set()

    def give_credentials(self, auth: RegistryAuth) -> None:
        self.auth = auth
        self.credentials_came.set()

    def _apply(self, **changes: Any) -> None:
        info = msgspec.structs.replace(self.info, version=self.info.version + 1, **changes)
        self.record = msgspec.structs.replace(self.record, info=info)


def _how_it_ended(info: TaskInfo) -> str:
    code = None if info.exit_code is None else f"exit code {info.exit_code}"
    return ", ".join(filter(None, (info.reason, code, info.message)))


def _readable(text: str) -> str:
    """Return one line of the text: engines quote strings of jobs."""
    return "".join(c if c.isprintable() else " " for c in text)[:_MAX_WORDS]
