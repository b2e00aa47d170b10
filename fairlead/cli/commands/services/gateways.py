"""Commands about gateways: the machines through which services are reached from the internet."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Flag, Json
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.configuration.convert import ConfigurationError, convert
from fairlead.configuration.text.source import Document
from fairlead.documents.installation import GatewayView
from fairlead.rest import decode
from fairlead.wire.gateway import AGENT_SOCKET

TYPE = "gateway"
_CERTIFICATE = (
    "lets-encrypt, internal, none, or a mapping with cert and key (files on the gateway's "
    "machine), or with email, directory, directory_ca for lets-encrypt"
)
ALLOWED = {
    "type": "gateway",
    "name": "lowercase letters, digits and hyphens",
    "host": "the name or address of the gateway's machine",
    "port": "the port of its sshd",
    "user": "the tunnel user there",
    "socket": "the path of the agent's socket there",
    "local_socket": "the path of the agent's socket on the controller's machine",
    "host_key": "a public host key, as in /etc/ssh/ssh_host_ed25519_key.pub",
    "accept_host_key": "the fingerprint (SHA256:…) of a present host key",
    "domain": "a domain such as apps.example.com: services get NAME.apps.example.com",
    "certificate": _CERTIFICATE,
    "certificate.cert": "the path of a PEM file on the gateway's machine",
    "certificate.key": "the path of a PEM file on the gateway's machine",
    "certificate.email": "an address such as ops@example.com",
    "certificate.directory": "the URL of an ACME directory",
    "certificate.directory_ca": "the path of a PEM file on the gateway's machine",
    "default": "true or false",
}


_NOT_RENTED = (
    "no machine is rented for a gateway: `fairlead gateway setup` makes it one; give `host`"
)
_OF_DSTACK = dict.fromkeys(("backend", "region", "public_ip", "instance_type"), _NOT_RENTED)


class _Gateways(msgspec.Struct):
    gateways: list[GatewayView]


class CertificateFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cert: str | None = None
    key: str | None = None
    email: str | None = None
    directory: str | None = None
    directory_ca: str | None = None


class GatewayFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a `type: gateway` file."""

    type: Literal["gateway"]
    name: str
    domain: str
    host: str | None = None
    port: int = 22
    user: str = "fairlead"
    socket: str = AGENT_SOCKET
    local_socket: str | None = None
    host_key: str | None = None
    accept_host_key: str | None = None
    certificate: Literal["lets-encrypt", "internal", "none"] | CertificateFields = "lets-encrypt"
    default: bool = False


Email = Annotated[
    str | None, Parameter(help="For lets-encrypt: the address to which the authority writes.")
]
Directory = Annotated[str | None, Parameter(help="The URL of another ACME directory.")]
Authority = Annotated[
    str | None,
    Parameter(help="The CA file, on the gateway's machine, that verifies that directory."),
]


def add(
    name: str,
    /,
    *,
    domain: str,
    host: str | None = None,
    port: int = 22,
    user: str = "fairlead",
    socket: str = AGENT_SOCKET,
    local: str | None = None,
    host_key: str | None = None,
    accept_host_key: str | None = None,
    certificate: str = "lets-encrypt",
    email: Email = None,
    acme_directory: Directory = None,
    acme_ca: Authority = None,
    default: Annotated[bool, Flag] = False,
    json: Json = False,
) -> int:
    """Add a gateway: a machine that `fairlead gateway setup` made one.

    Parameters
    ----------
    domain
        Services get NAME.DOMAIN; the DNS entry *.DOMAIN must lead to the gateway.
    host
        The address of the gateway's machine.
    port
        The port of its sshd.
    user
        The tunnel user there.
    socket
        The agent's socket there.
    local
        The agent's socket, when it is on the controller's machine.
    host_key
        The machine's public host key, as in /etc/ssh/ssh_host_ed25519_key.pub.
    accept_host_key
        The fingerprint (SHA256:…) of one of the machine's present host keys.
    certificate
        lets-encrypt, internal (Caddy's own authority), none (plain HTTP), or CERT:KEY, two files on
        the gateway's machine.
    default
        Use this gateway for services that name none.
    """
    if (host is None) == (local is None):
        raise CliError(
            "give either --host HOST or --local SOCKET (an agent on the controller's machine)",
            EXIT_USAGE,
        )
    wanted = _certificate_of_option(certificate)
    given = {"email": email, "directory": acme_directory, "directory_ca": acme_ca}
    body = {
        "name": name,
        "domain": domain,
        "host": host,
        "port": port,
        "user": user,
        "socket": socket,
        "local_socket": local,
        "host_key": host_key,
        "accept_host_key": accept_host_key,
        "certificate": wanted | {key: value for key, value in given.items() if value is not None},
        "default": default,
    }
    return _show(settings.client().post("/v1/gateways", body), json, "added")


def _certificate_of_option(written: str) -> dict[str, str]:
    cert, colon, key = written.partition(":")
    return {"kind": "files", "cert": cert, "key": key} if colon else {"kind": written}


def list_(*, json: Json = False) -> int:
    """List gateways."""
    data = settings.client().get("/v1/gateways")
    if json:
        output.emit_json(data)
        return 0
    output.emit_table(
        ("NAME", "DOMAIN", "ADDRESS", "CERTIFICATE", "STATUS", "SERVICES", "ABOUT"),
        [_cells(one) for one in decode(data, _Gateways).gateways],
    )
    return 0


def _cells(gateway: GatewayView) -> tuple[str, ...]:
    about = [gateway.message or "", "default" if gateway.default else ""]
    return (
        gateway.name,
        gateway.domain,
        gateway.local_socket or f"{gateway.host}:{gateway.port}",
        gateway.certificate.kind,
        gateway.status,
        str(len(gateway.services)),
        "; ".join(part for part in about if part) or "-",
    )


def show(name: str, /, *, json: Json = False) -> int:
    """Show a gateway: its agent, its certificate and the services that use it."""
    data = settings.client().get(_path(name))
    if json:
        output.emit_json(data)
        return 0
    found = decode(data, GatewayView)
    output.emit(f"{found.name}: {found.status}{f', {found.message}' if found.message else ''}")
    output.emit(f"domain {found.domain}, certificate {found.certificate.kind}")
    output.emit(f"address {found.local_socket or f'{found.host}:{found.port}'}")
    output.emit(f"agent {found.version or 'never seen'}, key {found.key or '-'}")
    output.emit(f"services {', '.join(found.services) or '-'}")
    if found.certificates:
        rows = [
            (one.host, one.issuer or "-", one.expires_at or "-", one.error or "-")
            for one in found.certificates
        ]
        output.emit_table(("HOST", "ISSUER", "EXPIRES", "WHY NOT"), rows)
    return 0


def remove(name: str, /, *, json: Json = False) -> int:
    """Remove a gateway that no live service uses."""
    return _show(settings.client().delete(_path(name)), json, "removed")


def apply_gateway(document: Document, json: bool) -> int:
    """Add the gateway of a `type: gateway` file, or change it. Raises CliError."""
    try:
        fields = _fields(document.data)
    except ConfigurationError as error:
        raise CliError(document.explain(error), EXIT_USAGE) from None
    body = msgspec.to_builtins(fields)
    del body["type"]
    body["certificate"] = _certificate_of_file(fields.certificate)
    return _show(settings.client().put(_path(fields.name), body), json, "applied")


def _fields(data: object) -> GatewayFields:
    """Raises ConfigurationError."""
    fields = convert(data, GatewayFields, allowed=ALLOWED, hints=_OF_DSTACK)
    if (fields.host is None) == (fields.local_socket is None):
        raise ConfigurationError("host", "or local_socket is needed, and not both")
    return fields


def _certificate_of_file(written: str | CertificateFields) -> dict[str, Any]:
    if isinstance(written, str):
        return {"kind": written}
    kind = "lets-encrypt" if written.cert is None and written.key is None else "files"
    return {"kind": kind, **msgspec.to_builtins(written)}


def _path(name: str) -> str:
    return f"/v1/gateways/{quote(name, safe='')}"


def _show(data: bytes, json: bool, done: str) -> int:
    if json:
        output.emit_json(data)
        return 0
    found = decode(data, GatewayView)
    output.emit(f"gateway {found.name} {done}")
    if done != "removed":
        output.emit(f"services answer at NAME.{found.domain}")
        if found.status != "connected":
            output.note(f"its agent is away: {found.message or 'not tried yet'}")
    return 0
