"""Notices: sentences of a shim about a job's GPUs, which its runner writes to the job's log."""

from __future__ import annotations

import asyncio
import logging

from common.links.errors import LinkError
from controller.links.base import NodeConnection
from fairlead.wire.shim import Notice, TaskInfo, TaskStatus
from runner.client import RunnerError, RunnerUnavailable

log = logging.getLogger(__name__)
PAUSES = (0.2, 1.0, 5.0, 30.0)
"""Seconds before each further try. A runner that stays away longer gets the notice with the next
state of its task, or the next connection."""


class NoticeCarrier:
    """Passes notices to runners over one connection. Closing it drops the notices that are still on
    their way."""

    def __init__(self, connection: NodeConnection) -> None:
        self._connection = connection
        self._carried: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def carry(self, info: TaskInfo) -> None:
        if info.status is not TaskStatus.RUNNING:
            return
        for notice in info.notices:
            if (info.id, notice.id) not in self._carried:
                # Noted before it is delivered: the task may be reported again while the first try
                # waits.
                self._carried.add((info.id, notice.id))
                task = asyncio.create_task(self._tell(info, notice), name=f"notice {info.id}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell(self, info: TaskInfo, notice: Notice) -> None:
        for pause in (*PAUSES, None):
            try:
                await self._connection.runner(info.runner_socket).notice(notice.id, notice.text)
                return
            except RunnerError as error:
                log.info("attempt %s: a notice is not for its log: %s", info.id, error)
                return
            # The next connection has a carrier of its own, and the runner ignores a repeated id.
            except LinkError:
                return
            except RunnerUnavailable:
                if pause is None:
                    self._carried.discard((info.id, notice.id))
                else:
                    await asyncio.sleep(pause)
