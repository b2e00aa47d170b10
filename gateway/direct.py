"""The direct way to a replica (rule 8.16): by TLS to its node's HAProxy, without SSH.

The agent asks the node through SSH, which tells that the other end is this node: so certificates of
both ends come to each other, and each trusts exactly those. Then it tries the way. What it finds is
where a direct server of HAProxy may lead; a node that offers nothing stays with SSH.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path

from common import pinned_certificates
from common.files.durable import write_durably
from common.haproxy_admin import MAX_TRUSTED, HaproxyAway, HaproxyRefused
from common.links.dialling import dial
from common.links.errors import LinkError
from common.pinned_certificates import BadCertificate
from common.proxy.view import Replica
from fairlead.wire.gateway import DirectAnswer, DirectQuestion, GatewayNode
from gateway.haproxy import DirectPlace, Paths

log = logging.getLogger(__name__)
TRY_SECONDS = 10.0
AGAIN_SECONDS = 60.0
"""A replica to which there was no direct way is tried again after this time."""
SILENCE_SECONDS = 0.3
"""A node that does not let this gateway in says so after the handshake (TLS 1.3); one that is
silent for this long does."""
_LABEL = re.compile(r"[0-9a-f]{1,63}")
_MAX_PORT = 65535
Ask = Callable[[Replica, DirectQuestion], Awaitable[DirectAnswer | None]]


class NoDirectWay(Exception):
    """The message says why."""


_FAILURES = (NoDirectWay, HaproxyAway, HaproxyRefused, LinkError, OSError, TimeoutError)


def prepare(paths: Paths) -> None:
    """Make the files that HAProxy needs when it starts, if they are not there or empty: this
    gateway's own certificate, and that of no node. Blocks. Raises OSError."""
    if not _has_text(paths.identity):
        paths.identity.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(paths.identity, pinned_certificates.make().encode(), 0o600)
    if not _has_text(paths.nodes):
        _write_nodes(paths, ())


def _has_text(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _write_nodes(paths: Paths, certificates: Iterable[str]) -> str:
    """Write the certificates of nodes; return what is written. HAProxy refuses a file without any,
    so this gateway's own comes first: nobody else has its key."""
    own = pinned_certificates.certificate_of(paths.identity.read_text())
    text = "".join((own, *certificates))
    write_durably(paths.nodes, text.encode(), 0o600)
    return text


class DirectWays:
    """Finds direct ways. `ask` asks the node of a replica, through SSH; None: it is older than
    this. `trust` lets HAProxy trust the nodes with these certificates alone."""

    def __init__(self, paths: Paths, ask: Ask, trust: Callable[[str], Awaitable[None]]) -> None:
        self._paths = paths
        self._ask = ask
        self._trust = trust
        self._nodes: dict[str, str] = {}
        self._changing = asyncio.Lock()
        self._logged: dict[str, str] = {}
        self._again_at: dict[str, float] = {}

    def rests(self, replica: Replica) -> bool:
        """Return whether there was no way to the replica lately."""
        return self._again_at.get(replica.id, 0.0) > self._now()

    def rest(self, replica: Replica) -> None:
        """Let the replica rest before it is tried again."""
        self._again_at[replica.id] = self._now() + AGAIN_SECONDS

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def find(self, replica: Replica, node: GatewayNode) -> DirectPlace | None:
        """Return where a direct server leads to the replica; None: there is no direct way."""
        try:
            # A firewall that drops packets answers nothing: TCP would try for two minutes (tcp(7),
            # tcp_syn_retries).
            async with asyncio.timeout(TRY_SECONDS):
                place = await self._find(replica, node)
        except _FAILURES as error:
            why = str(error) or "no answer"
            if self._logged.get(replica.id) != why:
                self._logged[replica.id] = why
                log.info("no direct way to replica %s: %s", replica.id, why)
            return None
        self._logged.pop(replica.id, None)
        return place

    def keep(self, replica_ids: Iterable[str], node_ids: Iterable[str]) -> None:
        """Forget other replicas and nodes. HAProxy forgets them with the next node that comes."""
        kept, nodes = set(replica_ids), set(node_ids)
        self._logged = {id: why for id, why in self._logged.items() if id in kept}
        self._again_at = {id: at for id, at in self._again_at.items() if id in kept}
        self._nodes = {id: one for id, one in self._nodes.items() if id in nodes}

    async def _find(self, replica: Replica, node: GatewayNode) -> DirectPlace:
        identity = await asyncio.to_thread(self._paths.identity.read_text)
        own = pinned_certificates.certificate_of(identity)
        answer = await self._ask(replica, DirectQuestion(certificate=own))
        if answer is None or answer.why is not None:
            raise NoDirectWay("its node offers none" if answer is None else answer.why)
        certificate = _checked(answer)
        address = await self._try(node.host, answer, certificate)
        async with self._changing:
            if self._nodes.get(node.id) != certificate:
                others = (one for id, one in self._nodes.items() if id != node.id)
                if sum(map(len, (own, certificate, *others))) > MAX_TRUSTED:
                    raise NoDirectWay("as many nodes as HAProxy can trust have a direct way")
                self._nodes[node.id] = certificate
                try:
                    text = await asyncio.to_thread(
                        _write_nodes, self._paths, tuple(self._nodes.values())
                    )
                    await self._trust(text)
                except BaseException:
                    # The next try tells it again.
                    self._nodes.pop(node.id, None)
                    raise
        return DirectPlace(address=address, port=answer.port, name=answer.name)

    async def _try(self, host: str, answer: DirectAnswer, certificate: str) -> str:
        """Return the address at which the node lets this gateway in. Raises NoDirectWay, OSError,
        TimeoutError."""
        context = await asyncio.to_thread(self._context, certificate)
        connect = partial(
            asyncio.open_connection, port=answer.port, ssl=context, server_hostname=answer.name
        )
        reader, writer = await dial(host, answer.port, connect)
        with contextlib.closing(writer):
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    # In TLS 1.3 a client's handshake is over before the server has judged its
                    # certificate: a refusal comes only here.
                    if not await reader.read(1):
                        raise NoDirectWay("its node closes the connection")
            except TimeoutError:
                pass
            address: str = writer.get_extra_info("peername")[0]
            return address

    def _context(self, certificate: str) -> ssl.SSLContext:
        # With `cadata`, the system's authorities are not loaded: this certificate alone is trusted.
        context = ssl.create_default_context(cadata=certificate)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self._paths.identity)
        return context


def _checked(answer: DirectAnswer) -> str:
    """Return the node's certificate. Raises NoDirectWay: what a node says becomes a command to
    HAProxy."""
    try:
        domain = pinned_certificates.check(answer.certificate)
        certificate = pinned_certificates.certificate_of(answer.certificate)
    except BadCertificate as bad:
        raise NoDirectWay(f"its node's certificate is refused: {bad}") from bad
    label, _, rest = answer.name.partition(".")
    if not _LABEL.fullmatch(label) or rest != domain or not 1 <= answer.port <= _MAX_PORT:
        raise NoDirectWay("its node names a port or a name that is none of its own")
    return certificate
