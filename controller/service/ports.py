"""A way for a user to what a job listens on: through the node's link and the job's runner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from controller.lifecycle.model import RunState
from controller.lifecycle.statuses import AttemptStatus
from controller.links.base import LinkError, NodeConnection
from controller.service.access import require_control
from controller.service.errors import Conflict, ServiceError, Unavailable
from controller.service.logs import find_job
from controller.store.users import User
from runner.client import PortStream, RunnerError, RunnerUnavailable

CONNECT_SECONDS = 15.0

Connect = Callable[[str], Awaitable[NodeConnection]]
"""The live connection of a node, waited for as long as it takes."""


class PortUnusable(ServiceError):
    """The job is there, but this port of it cannot be spoken to now."""

    status = 502
    code = "port_unusable"


class Runs(Protocol):
    async def get(self, key: str) -> RunState: ...


class PortService:
    def __init__(self, runs: Runs, connect: Connect) -> None:
        self._runs = runs
        self._connect = connect

    async def open(self, key: str, job_key: str | None, port: int, *, user: User) -> PortStream:
        """A fresh connection to `port` of the job's loopback; the caller closes it.

        Raises NotFound, Forbidden, Conflict (`not_running`), Unavailable, PortUnusable."""
        state = await self._runs.get(key)
        require_control(user, state.run)
        job = find_job(state, job_key)
        attempt = job.attempts[-1] if job.attempts else None
        if attempt is None or attempt.status is not AttemptStatus.RUNNING:
            status = "not started" if attempt is None else attempt.status.lower()
            raise Conflict(
                f"the job of {state.run.name} does not run ({status})", code="not_running"
            )
        assert attempt.node_id is not None
        socket = attempt.runner_socket or ""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await self._connect(attempt.node_id)
                return await connection.runner(socket).connect_port(port)
        except TimeoutError:
            raise Unavailable(
                "the job's node is not connected at the moment", code="node_unreachable"
            ) from None
        except (LinkError, RunnerUnavailable) as error:
            raise Unavailable(f"the job cannot be reached: {error}") from error
        except RunnerError as error:
            raise PortUnusable(error.message, code=error.code, field=error.field) from error
