"""Connections to ports of a job."""

from __future__ import annotations

import asyncio

from common.links.errors import LinkError
from common.refusals import ServiceError, Unavailable
from common.streams import PortStream
from controller.service.accounts.rights import require_control
from controller.service.jobs.access import CONNECT_SECONDS, Reach, Runs, running_attempt
from controller.store.accounts import User
from fairlead.wire.errors import AgentError, AgentUnavailable


class PortService:
    def __init__(self, runs: Runs, reach: Reach) -> None:
        self._runs = runs
        self._reach = reach

    async def open(self, key: str, job_key: str | None, port: int, *, user: User) -> PortStream:
        """Open a connection to `port` of the job's loopback; the caller closes it.

        Raises NotFound, Forbidden, Conflict (`not_running`), Unavailable, PortUnusable.
        """
        state = await self._runs.get(key)
        require_control(user, state.run)
        attempt = running_attempt(state, job_key)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._reach(attempt, port)
        except TimeoutError:
            raise Unavailable(
                "the job's node is not connected at the moment", code="node_unreachable"
            ) from None
        except (LinkError, AgentUnavailable) as error:
            raise Unavailable(f"the job cannot be reached: {error}") from error
        except AgentError as error:
            raise PortUnusable(error.message, code=error.code, field=error.field) from error


class PortUnusable(ServiceError):
    """The job is there, but no connection to this port is possible now."""

    status = 502
    code = "port_unusable"
