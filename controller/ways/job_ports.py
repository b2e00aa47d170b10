"""Terminals and forwarded ports that a follower carries itself, so that they outlast the leader.

The database says who may have them, when they begin and as long as they last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from common.links.errors import LinkError
from common.refusals import Unavailable
from common.streams import PortStream
from controller.api.jobs.ports import PORT_PATH, PortQuery, carry_port, number_of
from controller.api.jobs.terminals import TERMINAL_PATH, TerminalQuery, serve_terminal
from controller.forwarding.dashboard_reads import API, DashboardReads
from controller.lifecycle.model import Attempt, RunState
from controller.replica.alone import NeedsLeader
from controller.service.jobs.access import running_attempt
from controller.service.jobs.ports import PortService
from controller.service.jobs.terminals import TerminalService
from controller.ways.lent import LentWay, LentWays
from fairlead.wire.errors import AgentError
from fairlead.wire.shim import CLUSTER_SSH_PORT

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Known:
    """The run that was just read."""

    def __init__(self, state: RunState) -> None:
        self._state = state

    async def get(self, key: str) -> RunState:
        return self._state


class JobPorts:
    """Answers requests for ports and terminals. `secret`: what the keys of terminals are derived
    from, as at the leader. Each answer raises ServiceError, StoreError or NeedsLeader."""

    def __init__(self, reads: DashboardReads, ways: LentWays, secret: bytes) -> None:
        self._reads = reads
        self._ways = ways
        self._secret = secret
        self._open: Counter[str] = Counter()

    @property
    def routes(self) -> Mapping[str, Answer]:
        """The answers to GET, by the path of the route."""
        answers = {PORT_PATH: self._port, TERMINAL_PATH: self._terminal}
        return {prefix + path: one for prefix in ("", API) for path, one in answers.items()}

    async def close(self) -> None:
        await self._ways.close()

    async def _port(self, request: web.Request) -> web.StreamResponse:
        async with self._reads.begun(request) as read:
            state = await read.run()
            query, user = read.query(PortQuery), read.user
        port = number_of(request.match_info["port"])
        attempt = running_attempt(state, query.job)
        # From here on: the leader, and the node, may take seconds.
        with self._reads.while_allowed(request, state.run.id):
            async with self._ways.held(state.run.id, attempt.id) as way:
                ports = PortService(_Known(state), _through(way))
                try:
                    stream = await ports.open(state.run.id, query.job, port, user=user)
                except Unavailable as error:
                    raise NeedsLeader from error
                return await carry_port(request, stream)

    async def _terminal(self, request: web.Request) -> web.StreamResponse:
        async with self._reads.begun(request) as read:
            state = await read.run()
            query, user = read.query(TerminalQuery), read.user
        attempt = running_attempt(state, query.job)
        with self._reads.while_allowed(request, state.run.id):
            async with self._ways.held(state.run.id, attempt.id) as way:
                await _require_reached(way)
                known = _Known(state)
                ports = PortService(known, _through(way))
                terminals = TerminalService(known, ports, self._secret, self._open)
                return await serve_terminal(request, terminals, state.run.id, query, user)


def _through(way: LentWay) -> Callable[[Attempt, int], Awaitable[PortStream]]:
    async def reach(_: Attempt, port: int) -> PortStream:
        return await way.connect(port)

    return reach


async def _require_reached(way: LentWay) -> None:
    """Raise NeedsLeader if the job can't be reached from here: a terminal that has begun can't go
    to the leader any more."""
    try:
        stream = await way.connect(CLUSTER_SSH_PORT)
    except LinkError as error:
        raise NeedsLeader from error
    except AgentError:
        # The job is reached. Its SSH server may have another port.
        return
    stream.writer.close()
