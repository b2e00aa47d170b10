"""Registrations announce nodes before they boot.

The controller makes the node's host key pair beforehand. It pins the public half. It hands out the
private half once, in the user-data with which the machine boots, and does not store it. The node is
EXPECTED until its address is known; then it is a node like any other.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Literal

import msgspec

from common.links import host_keys
from common.refusals import Conflict, Forbidden, Gone, Invalid, Unavailable
from common.tokens import digest, new_token
from controller.clock import Chance, Clock
from controller.lifecycle.model import DEFAULT_FLEET, Node, NodeAddress, NodeStatus, Registration
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.accounts.rights import require_admin
from controller.service.machines.fleets import check_attributes
from controller.service.machines.nodes import (
    DEFAULT_SHIM_SOCKET,
    NodeService,
    check_address,
    check_name,
)
from controller.service.machines.user_data import JoinPoint, Provider, UserData, render
from controller.store.accounts import User

DEFAULT_EXPIRY = 86400.0
MAX_EXPIRY = 90 * 86400.0
_MIN_EXPIRY = 60.0
_MAX_ENTRIES = 32
_MAX_LENGTH = 512
_UNSAFE = frozenset(" \t\"'\\$")
"""The bundle's `install` refuses these characters, which would be noticed only at the first
boot."""


class Announcement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node that will boot with the user-data of this announcement. `expires_after` is in
    seconds."""

    name: str
    fleet: str = DEFAULT_FLEET.name
    attributes: dict[str, str] = {}
    provider: Provider | None = None
    volume_prefixes: tuple[str, ...] = ()
    registry_mirror: str | None = None
    job_metadata: Literal["open", "closed"] | None = None
    expires_after: float = DEFAULT_EXPIRY


class RegistrationService:
    def __init__(
        self,
        nodes: NodeService,
        pipeline: RunPipeline,
        clock: Clock,
        chance: Chance,
        node_key: str | None,
        join: JoinPoint | None = None,
    ) -> None:
        self._nodes = nodes
        self._pipeline = pipeline
        self._clock = clock
        self._chance = chance
        self._node_key = node_key
        self._join = join
        self._registering: set[str] = set()
        """Ids of nodes whose address is being stored: a token works once, also at the same time."""

    async def announce(self, wish: Announcement, *, user: User) -> tuple[Node, str]:
        """Return the expected node and its user-data.

        A repeated announcement of an expected node makes another key, and the earlier user-data is
        worthless. Raises Invalid, Conflict, Unavailable, Forbidden.
        """
        require_admin(user, "announce a node")
        _check(wish)
        check_attributes(wish.attributes)
        self._nodes.require_fleet(wish.fleet)
        if self._node_key is None:
            raise Unavailable("this controller has no SSH key: it was started without one")
        before = self._nodes.named(wish.name)
        if before is not None and before.registration is None:
            raise Conflict(f"a node named {wish.name} exists already", field="name")
        private_key, public_key = host_keys.new_host_key()
        token = None if self._join is None else new_token(secrets.token_bytes)
        node_id = self._chance.new_id() if before is None else before.id
        node, expires_at = self._expected(wish, node_id, public_key, token)
        user_data = render(
            UserData(
                name=wish.name,
                fleet=wish.fleet,
                expires_at=expires_at,
                host_private_key=private_key,
                host_public_key=public_key,
                tunnel_key=self._node_key,
                volume_prefixes=wish.volume_prefixes,
                registry_mirror=wish.registry_mirror,
                job_metadata=wish.job_metadata,
                join=self._join,
                token=token,
            ),
            wish.provider,
        )
        await self._pipeline.save_node(node, node.id)
        return node, user_data

    def _expected(
        self, wish: Announcement, node_id: str, host_key: str, token: str | None
    ) -> tuple[Node, float]:
        """Return the node, and when its announcement expires."""
        now = self._clock.now()
        expires_at = now + wish.expires_after
        node = Node(
            id=node_id,
            name=wish.name,
            fleet=wish.fleet,
            attributes=wish.attributes,
            address=NodeAddress(shim_socket=DEFAULT_SHIM_SOCKET, host_key=host_key),
            status=NodeStatus.EXPECTED,
            registration=Registration(
                expires_at=expires_at, token_digest=None if token is None else digest(token)
            ),
            message=f"waits for `fairlead node register {wish.name} --address HOST`"
            + ("" if token is None else ", or that it tells its address itself"),
            created_at=now,
        )
        return node, expires_at

    async def register(self, key: str, *, host: str, port: int, user: User) -> Node:
        """Give an expected node its address; the same address again changes nothing.

        Raises NotFound, Invalid, Conflict, Gone, Forbidden.
        """
        require_admin(user, "register a node")
        check_address(host, port)
        return await self._register(self._nodes.get(key), host, port)

    async def join(self, name: str, token: str, *, host: str, port: int) -> Node:
        """Register a node that gives its address itself, with the token of its user-data, which
        works once.

        Raises Forbidden, Invalid.
        """
        node = self._nodes.named(name)
        registration = None if node is None else node.registration
        known = "" if registration is None else registration.token_digest or ""
        # In constant time: how long it takes must not tell how much of the digest is right.
        is_right = hmac.compare_digest(digest(token), known)
        if node is None or registration is None or not is_right:
            raise Forbidden(f"no node {name[:80]!r} is expected with this token")
        if self._clock.now() >= registration.expires_at:
            raise Forbidden(f"the user-data of node {node.name} has expired")
        check_address(host, port)
        return await self._register(node, host, port)

    async def _register(self, node: Node, host: str, port: int) -> Node:
        if node.registration is None:
            if (node.address.host, node.address.port) == (host, port):
                return node
            raise Conflict(
                f"node {node.name} is already registered with another address; remove it and "
                f"announce it again (`fairlead node user-data {node.name}`)",
                code="node_registered",
                field="node",
            )
        if self._clock.now() >= node.registration.expires_at:
            raise Gone(
                f"the user-data of node {node.name} has expired; make it again (`fairlead node "
                f"user-data {node.name}`) and boot the machine with it",
                code="registration_expired",
                field="node",
            )
        if node.id in self._registering:
            raise Conflict(f"node {node.name} is being registered now", code="node_registered")
        registered = msgspec.structs.replace(
            node,
            address=msgspec.structs.replace(node.address, host=host, port=port),
            status=NodeStatus.CONNECTING,
            registration=None,
            message=None,
        )
        self._registering.add(node.id)
        try:
            await self._pipeline.save_node(registered, node.id)
        finally:
            self._registering.discard(node.id)
        return registered


def _check(wish: Announcement) -> None:
    check_name(wish.name)
    if not _MIN_EXPIRY <= wish.expires_after <= MAX_EXPIRY:
        raise Invalid("the user-data can be used for 1 minute to 90 days", field="expires_after")
    for prefix in wish.volume_prefixes:
        if not prefix.startswith("/") or "/../" in f"{prefix}/":
            raise Invalid(f"{prefix[:80]!r} is not an absolute path", field="volume_prefixes")
    _check_words("volume_prefixes", wish.volume_prefixes)
    if wish.registry_mirror is not None:
        _check_mirror(wish.registry_mirror)
        _check_words("registry_mirror", (wish.registry_mirror,))


def _check_mirror(mirror: str) -> None:
    host = mirror.partition("://")[2]
    if not mirror.startswith(("https://", "http://")) or not host or "@" in host:
        raise Invalid(
            f"{mirror[:80]!r} is not a URL such as https://mirror.example, without a password",
            field="registry_mirror",
        )


def _check_words(
    field: Literal["volume_prefixes", "registry_mirror"], entries: tuple[str, ...]
) -> None:
    """Check the entries: each becomes one word in a file of options."""
    if len(entries) > _MAX_ENTRIES:
        raise Invalid(f"at most {_MAX_ENTRIES} can be given", field=field)
    for word in entries:
        if len(word) > _MAX_LENGTH or not word.isprintable() or _UNSAFE & set(word):
            raise Invalid(
                f"{word[:80]!r} has blanks, quotes, \\ or $ in it, or is longer than "
                f"{_MAX_LENGTH} characters",
                field=field,
            )
