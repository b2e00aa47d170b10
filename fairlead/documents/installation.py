"""The controllers of an installation, and its gateways."""

from __future__ import annotations

import msgspec

from fairlead.wire.gateway import Certificate


class ControllerView(msgspec.Struct, frozen=True, kw_only=True):
    """A controller among those that share a database. `status`: leads, waits or gone.
    `disk_free_bytes`: of its data folder's disk; None: it has not told."""

    id: str
    url: str
    version: str
    status: str
    started_at: str
    last_seen_at: str
    disk_free_bytes: int | None = None
    is_disk_full: bool = False


class HostCertificateView(msgspec.Struct, frozen=True, kw_only=True):
    """The certificate that a service's host shows at its gateway; `error`: why it shows none."""

    host: str
    issuer: str | None
    expires_at: str | None
    error: str | None


class GatewayView(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway. `status`: connected or away; `message`: why it is away, or what of its settings it
    could not apply. `key`: by which its agent logs in at nodes. `services`: the live ones that use
    it."""

    name: str
    domain: str
    host: str | None
    port: int | None
    local_socket: str | None
    certificate: Certificate
    default: bool
    status: str
    message: str | None
    version: str | None
    key: str | None
    services: tuple[str, ...]
    created_at: str
    certificates: tuple[HostCertificateView, ...] = ()
