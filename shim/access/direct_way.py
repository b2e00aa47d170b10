"""The direct way: gateways reach exposed ports by TLS, at one port of the node, without SSH.

A HAProxy of the node's own has that port; `node install --gateway-port` sets it up, and without it
nothing listens. It lets in the certificates that gateways brought through SSH, and passes bytes on
to the address that belongs to the name that they ask for. A name belongs to one exposed port of one
running task. The shim writes HAProxy's files, and tells it what changed: so a HAProxy that starts
again knows as much, and one whose shim is away goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import pwd
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar

import msgspec

from common import haproxy_admin, pinned_certificates
from common.files.durable import write_durably
from common.haproxy_admin import HaproxyAway, HaproxyRefused
from common.pinned_certificates import BadCertificate
from fairlead.wire.gateway import DirectAnswer, DirectQuestion
from fairlead.wire.node import Finding, FindingLevel
from fairlead.wire.shim import TaskInfo, TaskStatus
from shim.settings import DirectAccess

log = logging.getLogger(__name__)
T = TypeVar("T")
pause = asyncio.sleep
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
HANDSHAKE_SECONDS = 10.0
AGAIN_SECONDS = 11.0
"""How long after the first cut of a removal comes the next: no handshake of before is under way."""
_MAX_GATEWAYS = 16
"""With the node's own certificate, as many as HAProxy can be told."""
_MAX_CONNECTIONS = 8000
_MAX_OF_ONE_ADDRESS = 4000
_LABEL = 32
_END = "-----END CERTIFICATE-----\n"
# A stranger has 10 s for its handshake: HAProxy 2.6 has no time of its own for that, and takes the
# client's. Then the tunnel's time holds, because gateways decide how long a request may last;
# keepalives find gateways that are gone. Tickets would let in a gateway that is not pinned any
# more. `strict-sni`: who asks for another node's name gets no certificate. A handshake that waits
# takes 46 KiB: strangers get neither all the unit's memory (MemoryMax) nor, from one address, all
# connections.
_CONFIGURATION = """\
# Written by the shim.
global
    stats socket {admin} mode 600 level admin
    fd-hard-limit 50000
    maxconn {connections}
    tune.ssl.cachesize 0
{user}
defaults
    mode tcp
    retries 0
    timeout connect {connect_seconds:g}s
    timeout client {handshake_seconds:g}s
    timeout server 10s
    timeout tunnel 24d
    option clitcpka
    clitcpka-idle 60s
    clitcpka-intvl 20s
    clitcpka-cnt 4

frontend direct
{binds}    maxconn {connections}
    stick-table type ipv6 size 100k expire 1m store conn_cur
    tcp-request connection track-sc0 src
    tcp-request connection reject if {{ sc0_conn_cur gt {of_one_address} }}
    tcp-request content reject unless {{ ssl_fc_sni,lower,map_str({ways}) -m found }}
    tcp-request content set-dst ssl_fc_sni,lower,map_str({ways}),field(1,:)
    tcp-request content set-dst-port ssl_fc_sni,lower,map_str({ways}),field(2,:)
    default_backend exposed

backend exposed
    server exposed 0.0.0.0
"""
_BIND = (
    "    bind {address}:{port}{only} ssl strict-sni crt {own} ca-file {gateways} verify required "
    "ssl-min-ver TLSv1.3 no-tls-tickets\n"
)


class DirectWays:
    """Which exposed ports have a direct way. `address_of` returns where the node reaches the ports
    of a task; None: it does not. `identity`: the file of the node's certificate with its key, which
    is made if it is not there."""

    def __init__(
        self,
        access: DirectAccess,
        identity: Path,
        find: Callable[[str], TaskInfo | None],
        address_of: Callable[[TaskInfo], str | None],
        executor: Executor,
    ) -> None:
        self._access = access
        self._identity = identity
        self._find = find
        self._address_of = address_of
        self._executor = executor
        self._own = ""
        self._domain = ""
        self._admitted: tuple[str, ...] = ()
        self._ways: dict[str, str] = {}
        self._changing = asyncio.Lock()
        self._generation = 0
        """The removals so far: what was asked before one is refused after it."""
        self._removes = False
        self._is_cut = False
        self._removing: asyncio.Task[None] | None = None
        self._opening: set[asyncio.Task[DirectAnswer]] = set()

    @property
    def removes(self) -> bool:
        """Return whether a removal is not over."""
        return self._removes

    async def open(self, exposed: Collection[str]) -> None:
        """Go on with the gateways and ways of before, but those of ports that are not exposed any
        more: `exposed` has those that are, as `serve` gets them. Raises OSError."""
        await self._in_thread(self._read)
        # One that is away reads its files when it starts.
        with contextlib.suppress(HaproxyAway, HaproxyRefused):
            await haproxy_admin.trust(
                self._access.admin, self._access.gateways, "".join((self._own, *self._admitted))
            )
        await self.keep(exposed)
        if self._removes:
            self._go_on()

    async def close(self) -> None:
        """A removal that is not over goes on with the next shim."""
        tasks: list[asyncio.Task[DirectAnswer] | asyncio.Task[None]] = [*self._opening]
        if self._removing is not None:
            # The file that orders the removal stays, and the next shim goes on with it.
            self._removing.cancel()
            tasks.append(self._removing)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def keep(self, exposed: Collection[str]) -> None:
        """Take away the ways to ports that are not among these. Raises OSError."""
        names = set(map(self._name, exposed))
        async with self._changing:
            self._ways = {name: to for name, to in self._ways.items() if name in names}
            await self._in_thread(self._write_ways)
            # An HAProxy that is away reads the file when it starts.
            with contextlib.suppress(HaproxyAway, HaproxyRefused):
                await self._tell_ways()

    async def begin_removal(self) -> None:
        """Call this before a gateway's key goes: from here on nobody is let in anew, until
        `forget_gateways` is over, also in the next life of the shim. Raises OSError."""
        async with self._changing:
            await self._mark_removal()

    async def forget_gateways(self) -> None:
        """Let nobody in who was let in before, and cut all connections; once more when handshakes
        of before are over. Then a gateway that may still log in brings its certificate again.
        Raises OSError, and tries it again."""
        async with self._changing:
            # Questions that came in before the key was away are old ones too.
            await self._mark_removal()
            with contextlib.suppress(HaproxyAway, HaproxyRefused):
                await self._cut()

    async def _mark_removal(self) -> None:
        """Raises OSError."""
        self._generation += 1
        self._removes, self._is_cut = True, False
        self._go_on()
        await self._in_thread(lambda: write_durably(self._access.removal, b"", 0o600))

    def _go_on(self) -> None:
        """Begin the time to the next cut anew."""
        if self._removing is not None:
            self._removing.cancel()
        self._removing = asyncio.create_task(self._remove(), name="direct way: removal")

    async def _remove(self) -> None:
        while self._removes:
            await pause(AGAIN_SECONDS)
            try:
                async with self._changing:
                    # A handshake that was under way at the first cut has become a session since.
                    is_second = self._is_cut
                    await self._cut()
                    if is_second:
                        await self._in_thread(lambda: self._access.removal.unlink(missing_ok=True))
                        self._removes = False
            except (HaproxyAway, HaproxyRefused, OSError) as error:
                log.warning("a removed gateway is not cut yet: %s", error)

    async def _cut(self) -> None:
        """Raises HaproxyAway, HaproxyRefused, OSError."""
        self._admitted = ()
        await self._in_thread(self._write_gateways)
        await haproxy_admin.trust(self._access.admin, self._access.gateways, self._own)
        await haproxy_admin.do(self._access.admin, "shutdown sessions server exposed/exposed")
        self._is_cut = True

    async def examine(self) -> Finding:
        """Return whether HAProxy answers, for the doctor."""
        port = self._access.port
        try:
            await haproxy_admin.ask(self._access.admin, "show info")
        except HaproxyAway:
            return Finding(
                check="direct way",
                level=FindingLevel.WARNING,
                message=f"no HAProxy lets gateways in at port {port}: they go through SSH",
                fix="systemctl status fairlead-direct; does another program have the port?",
            )
        return Finding(
            check="direct way",
            level=FindingLevel.OK,
            message=f"HAProxy lets {len(self._admitted)} gateways in at port {port}, to "
            f"{len(self._ways)} ports of jobs",
        )

    async def serve(
        self,
        task_id: str,
        port: int,
        exposed: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Answer an agent that asks for the way to this port, which is exposed as `exposed`."""
        generation = self._generation
        with contextlib.closing(writer):
            answer = DirectAnswer(why="the question is none")
            # ValueError: a line longer than the reader takes (asyncio's `limit`).
            with contextlib.suppress(OSError, TimeoutError, ValueError, msgspec.DecodeError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    line = await reader.readline()
                    question = msgspec.json.decode(line, type=DirectQuestion)
                    answer = await self._lead(
                        task_id, port, exposed, question.certificate, generation
                    )
            # Who asked may have gone without the answer: drain() tells of the reset.
            with contextlib.suppress(OSError):
                writer.write(msgspec.json.encode(answer) + b"\n")
                await writer.drain()

    async def _lead(
        self, task_id: str, port: int, exposed: str, certificate: str, generation: int
    ) -> DirectAnswer:
        """Open the way to this exposed port for the gateway that has this certificate. Raises
        OSError."""
        try:
            pinned_certificates.check(certificate)
            admitted = pinned_certificates.certificate_of(certificate)
        except BadCertificate as bad:
            return DirectAnswer(why=f"the gateway's certificate is refused: {bad}")
        info = self._find(task_id)
        address = None if info is None else self._address_of(info)
        if info is None or info.status is not TaskStatus.RUNNING or address is None:
            return DirectAnswer(why="the node has no address of its task")
        why = await _why_closed(address, port)
        if why is not None:
            return DirectAnswer(why=f"nothing listens at {address}:{port} of its task: {why}")
        way = self._name(exposed), f"{address}:{port}"
        # A caller that gives up leaves no change half made.
        opening = asyncio.create_task(self._open_way(way, admitted, generation))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        return await asyncio.shield(opening)

    async def _open_way(self, way: tuple[str, str], admitted: str, generation: int) -> DirectAnswer:
        name, to = way
        async with self._changing:
            if self._removes or generation != self._generation:
                return DirectAnswer(why="a gateway is being removed from the node")
            try:
                await self._admit(admitted)
                self._ways[name] = to
                await self._in_thread(self._write_ways)
                await self._tell_ways()
            except (HaproxyAway, HaproxyRefused) as error:
                log.warning("no direct way: %s", error)
                return DirectAnswer(why="the node's HAProxy does not answer")
        return DirectAnswer(port=self._access.port, name=name, certificate=self._own)

    async def _admit(self, certificate: str) -> None:
        """Raises HaproxyAway, HaproxyRefused, OSError."""
        if certificate in self._admitted:
            return
        # A gateway that lost its folder comes with a new one; the oldest goes.
        before = self._admitted
        self._admitted = (*before, certificate)[-_MAX_GATEWAYS:]
        try:
            await self._in_thread(self._write_gateways)
            await haproxy_admin.trust(
                self._access.admin, self._access.gateways, "".join((self._own, *self._admitted))
            )
        except BaseException:
            # The next question tries it again; a HAProxy that starts meanwhile knows nothing of it.
            self._admitted = before
            await self._in_thread(self._write_gateways)
            raise

    async def _tell_ways(self) -> None:
        """Raises HaproxyAway, HaproxyRefused."""
        admin, ways = self._access.admin, self._access.ways
        listed = (await haproxy_admin.ask(admin, f"show map {ways}")).splitlines()
        known = {cells[1]: cells[2] for cells in map(str.split, listed) if len(cells) == 3}
        for name in known.keys() - self._ways.keys():
            await haproxy_admin.do(admin, f"del map {ways} {name}")
        for name, to in self._ways.items():
            if name not in known:
                await haproxy_admin.do(admin, f"add map {ways} {name} {to}")
            elif known[name] != to:
                await haproxy_admin.do(admin, f"set map {ways} {name} {to}")

    def _name(self, exposed: str) -> str:
        # The names of sockets open them; those of ways are in HAProxy's files.
        label = hashlib.sha256(exposed.encode()).hexdigest()[:_LABEL]
        return f"{label}.{self._domain}"

    # -- files ------------------------------------------------------------------------------

    def _read(self) -> None:
        identity = self._load_identity()
        self._own = pinned_certificates.certificate_of(identity)
        self._domain = pinned_certificates.check(identity)
        access = self._access
        # Only the shim and a HAProxy that has not yet become another user read it.
        access.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(access.own, identity.encode(), 0o600)
        with contextlib.suppress(FileNotFoundError):
            known = access.gateways.read_text().split(_END)
            found = [f"{text}{_END}" for text in known if text.strip()]
            # An earlier release let in more of them, and larger ones.
            small = [one for one in found if len(one) <= pinned_certificates.MAX_BYTES]
            self._admitted = tuple(one for one in small if one != self._own)[-_MAX_GATEWAYS:]
        with contextlib.suppress(FileNotFoundError):
            lines = [line.split() for line in access.ways.read_text().splitlines()]
            self._ways = {cells[0]: cells[1] for cells in lines if len(cells) == 2}
        self._removes = access.removal.exists()
        if self._removes:
            self._admitted = ()
        self._write_gateways()
        self._write_ways()
        write_durably(access.configuration, configuration(access).encode(), 0o600)

    def _load_identity(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            known = self._identity.read_text(errors="replace")
            try:
                pinned_certificates.check(known)
                return known
            except BadCertificate as bad:
                # Gateways learn another one from the answer to their next question.
                log.warning("%s is made anew: %s", self._identity, bad)
        made = pinned_certificates.make()
        write_durably(self._identity, made.encode(), 0o600)
        return made

    def _write_gateways(self) -> None:
        """HAProxy does not start with a file without a certificate, so its own comes first."""
        text = "".join((self._own, *self._admitted))
        write_durably(self._access.gateways, text.encode(), 0o600)

    def _write_ways(self) -> None:
        text = "".join(f"{name} {to}\n" for name, to in self._ways.items())
        write_durably(self._access.ways, text.encode(), 0o600)

    async def _in_thread(self, act: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, act)


def configuration(access: DirectAccess) -> str:
    """Return the configuration of the node's HAProxy, which only the node's options change."""
    binds = "".join(
        _BIND.format(
            address=address,
            only=" v6only" if address.startswith("[") else "",
            port=access.port,
            own=access.own,
            gateways=access.gateways,
        )
        for address in access.addresses
    )
    becomes = ""
    if access.user is not None and os.geteuid() == 0:
        # With `user` alone it would keep root's group.
        group = pwd.getpwnam(access.user).pw_gid
        becomes = f"    user {access.user}\n    gid {group}\n"
    return _CONFIGURATION.format(
        admin=access.admin,
        user=becomes,
        connections=_MAX_CONNECTIONS,
        of_one_address=_MAX_OF_ONE_ADDRESS,
        connect_seconds=CONNECT_SECONDS,
        handshake_seconds=HANDSHAKE_SECONDS,
        binds=binds,
        ways=access.ways,
    )


async def _why_closed(address: str, port: int) -> str | None:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(address, port)
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return error.strerror or str(error)
    writer.close()
    return None
