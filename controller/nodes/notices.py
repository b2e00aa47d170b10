"""Carries a task's notices (GPU health) from its shim to its runner, which alone writes its log.

The shim repeats them with each state of the task and the runner shows each once, so that telling
again is always right: after a lost answer, a reconnect or the controller's restart.
"""

from __future__ import annotations

import asyncio
import logging

from controller.links.base import LinkError, NodeConnection
from runner.client import RunnerError, RunnerUnavailable
from shim.schemas import Notice, TaskInfo, TaskStatus

log = logging.getLogger(__name__)

PAUSES = (0.2, 1.0, 5.0, 30.0)
"""Seconds before each further try; a runner that is not there for longer hears with the next state
of its task or the next connection."""


class NoticeCarrier:
    """For one connection. Closing it forgets what is still on its way."""

    def __init__(self, connection: NodeConnection) -> None:
        self._connection = connection
        self._told: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def carry(self, info: TaskInfo) -> None:
        if info.status is not TaskStatus.RUNNING:
            return
        for notice in info.notices:
            if (info.id, notice.id) not in self._told:
                self._told.add((info.id, notice.id))
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
            except LinkError:
                return
            except RunnerUnavailable:
                if pause is None:
                    self._told.discard((info.id, notice.id))
                else:
                    await asyncio.sleep(pause)
