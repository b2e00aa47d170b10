"""Connections to ports of a job, through its node's link and its runner."""

from __future__ import annotations

import asyncio

from common.links.errors import LinkError
from common.refusals import Conflict, ServiceError, Unavailable
from common.streams import PortStream
from controller.service.accounts.rights import require_control
from controller.service.jobs.access import CONNECT_SECONDS, Connect, Runs, find_job
from controller.store.accounts import User
from fairlead.model.statuses import AttemptStatus
from runner.client import RunnerError, RunnerUnavailable


class PortService:
    def __init__(self, runs: Runs, connect: Connect) -> None:
        self._runs = runs
        self._connect = connect

    async def open(self, key: str, job_key: str | None, port: int, *, user: User) -> PortStream:
        """Open a connection to `port` of the job's loopback; the caller closes it.

        Raises NotFound, Forbidden, Conflict (`not_running`), Unavailable, PortUnusable.
        """
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
        socket = attempt.task.runner_socket or ""
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


class PortUnusable(ServiceError):
    """The job is there, but no connection to this port is possible now."""

    status = 502
    code = "port_unusable"
