"""Terminals: a shell in a running job for a user without an SSH client, such as a browser.

The controller logs in to the job's own SSH server, with a key that it alone has, through the port
of that server. So a terminal needs what `fairlead ssh` needs, and no more; the job's host key is
pinned as there.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncssh

from common.refusals import Conflict, Invalid, ServiceError, Unavailable
from common.streams import PortStream
from controller.lifecycle.model import Attempt, Job, RunState
from controller.pipelines.performers.cluster import terminal_key
from controller.service.accounts.rights import require_control
from controller.service.jobs.access import Runs, find_job, running_attempt
from controller.service.jobs.ports import PortService, PortUnusable
from controller.store.accounts import User
from fairlead.wire.shim import CLUSTER_SSH_PORT

SSH_PORT_NAME = "ssh"
MAX_TERMINALS = 64
MAX_OF_ONE_USER = 16
LOGIN_SECONDS = 20.0
_PIECE_BYTES = 64 << 10
Process = asyncssh.SSHClientProcess[bytes]


class TooManyTerminals(ServiceError):
    status = 429
    code = "too_many_terminals"


class TerminalService:
    """Opens terminals. `secret`: what the runs' keys are derived from. `opened_by`: how many each
    user has open, if others open terminals too."""

    def __init__(
        self,
        runs: Runs,
        ports: PortService,
        secret: bytes,
        opened_by: Counter[str] | None = None,
    ) -> None:
        self._runs = runs
        self._ports = ports
        self._secret = secret
        self._open = Counter() if opened_by is None else opened_by

    async def require(self, run_id: str, job_key: str | None, *, user: User) -> Attempt:
        """Return the attempt that a terminal would be in. Raises NotFound, Forbidden, Conflict
        (`not_running`, `no_ssh`)."""
        state = await self._runs.get(run_id)
        require_control(user, state.run)
        attempt = running_attempt(state, job_key)
        if not attempt.task.ssh_host_key or SSH_PORT_NAME not in attempt.task.ports:
            why = why_no_ssh(state, find_job(state, job_key))
            why = why or "its node gave it none, and the log of the shim says why"
            raise Conflict(f"{state.run.name} has no SSH: {why}", code="no_ssh")
        return attempt

    @asynccontextmanager
    async def opened(
        self, run_id: str, job_key: str | None, *, user: User, login: str, size: tuple[int, int]
    ) -> AsyncIterator[Process]:
        """Give a shell in the job's container, of columns x rows; it hangs up at the end of the
        block.

        Raises as `require`, and Invalid, Unavailable, TooManyTerminals.
        """
        attempt = await self.require(run_id, job_key, user=user)
        if not login or login.startswith("-") or not login.isprintable() or " " in login:
            raise Invalid(f"{login!r} is not a user's name", field="login")
        with self._counted(user):
            async with self._connected(run_id, job_key, attempt, user, login) as ssh:
                try:
                    process = await ssh.create_process(
                        term_type="xterm-256color", term_size=size, encoding=None
                    )
                except asyncssh.Error as error:
                    raise Unavailable(f"the job gives no terminal: {error.reason}") from error
                yield process

    @contextlib.contextmanager
    def _counted(self, user: User) -> Iterator[None]:
        if self._open.total() >= MAX_TERMINALS or self._open[user.name] >= MAX_OF_ONE_USER:
            raise TooManyTerminals(
                f"{self._open[user.name]} terminals of {user.name} and {self._open.total()} of all "
                f"users are open; close one and try again"
            )
        self._open[user.name] += 1
        try:
            yield
        finally:
            self._open[user.name] -= 1
            if not self._open[user.name]:
                del self._open[user.name]

    @asynccontextmanager
    async def _connected(
        self, run_id: str, job_key: str | None, attempt: Attempt, user: User, login: str
    ) -> AsyncIterator[asyncssh.SSHClientConnection]:
        """Log in at the port of the container's network, else of the node's: the pinned host key
        tells which one is the job's."""
        refused: Exception | None = None
        for port in dict.fromkeys((CLUSTER_SSH_PORT, attempt.task.ports[SSH_PORT_NAME])):
            async with contextlib.AsyncExitStack() as stack:
                try:
                    stream = await self._ports.open(run_id, job_key, port, user=user)
                    ssh = await stack.enter_async_context(
                        self._logged_in(stream, run_id, attempt, login)
                    )
                except (PortUnusable, asyncssh.Error, OSError, TimeoutError) as error:
                    refused = error
                    continue
                yield ssh
                return
        raise Unavailable(
            f"the SSH server of the job does not let the controller in: {_why(refused)}",
            code="no_ssh",
        ) from refused

    @asynccontextmanager
    async def _logged_in(
        self, stream: PortStream, run_id: str, attempt: Attempt, login: str
    ) -> AsyncIterator[asyncssh.SSHClientConnection]:
        pinned = asyncssh.import_public_key(attempt.task.ssh_host_key or "")
        private = asyncssh.import_private_key(terminal_key(self._secret, run_id).private)
        async with _as_socket(stream) as end, asyncio.timeout(LOGIN_SECONDS) as limit:
            ssh = await asyncssh.connect(
                "job",
                sock=end,
                username=login,
                known_hosts=([pinned], [], [], [], [], [], []),
                client_keys=[private],
                # Neither the operator's agent nor a ~/.ssh/config may take part in it.
                agent_path=None,
                config=None,
                compression_algs=None,
                preferred_auth="publickey",
                # A node that lost its power sends no FIN: without this, the terminal would hang.
                keepalive_interval=30,
            )
            # The limit is for the login alone: a terminal may stay open.
            limit.reschedule(None)
            try:
                yield ssh
            finally:
                # No polite close: a job that is frozen or hostile need not answer one.
                ssh.abort()
                await ssh.wait_closed()


def why_no_ssh(state: RunState, job: Job) -> str | None:
    """Return why the job has no SSH when it runs, and what to write instead; None: it will."""
    spec = job.spec
    if spec.ssh == "off":
        return "it was submitted with `ssh: off`; submit it again with `ssh: embedded`"
    has_one = bool(job.attempts) and job.attempts[-1].task.ssh_host_key is not None
    may_have_peers = spec.resources.whole_node and len(state.jobs) > 1
    if has_one or spec.ssh_keys or spec.ssh != "auto" or may_have_peers:
        return None
    return (
        "it was submitted without a public key; submit it again with `ssh: embedded`, or with a "
        "key (ssh-keygen makes one)"
    )


def _why(error: Exception | None) -> str:
    match error:
        case asyncssh.PermissionDenied():
            return "it started before this controller opened terminals, or runs another SSH server"
        case asyncssh.Error():
            return error.reason
        case TimeoutError():
            return f"no login within {LOGIN_SECONDS:.0f} s"
        case _:
            return str(error)


@asynccontextmanager
async def _as_socket(stream: PortStream) -> AsyncIterator[socket.socket]:
    """Give the stream as a socket, which is what asyncssh connects over."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    pumps = (
        asyncio.create_task(_pump(stream.reader.read, writer, stream.first)),
        asyncio.create_task(_pump(reader.read, stream.writer)),
    )
    try:
        yield theirs
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        writer.close()
        stream.writer.close()
        theirs.close()
        # wait_closed raises what ended the connection, such as a reset.
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _pump(read: Callable[[int], Awaitable[bytes]], writer: Any, first: bytes = b"") -> None:
    data = first
    # A reset ends this direction as an end does.
    with contextlib.suppress(OSError):
        while data or (data := await read(_PIECE_BYTES)):
            writer.write(data)
            await writer.drain()
            data = b""
    writer.close()
