"""Caddy's configuration, as a whole: TLS, and the ways to HAProxy and to the agent.

It depends on the gateway's domain and certificate alone. Caddy closes WebSockets when its
configuration changes, so no service and no replica is in it: certificates are made on demand, for
the host names that the agent knows, and the agent finds the replica.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import aiohttp
import msgspec

from gateway.schemas import Certificate

ASK_HOST = "ask.fairlead.internal"
ASK_PATH = "/ask"
_SECONDS = 20.0
_RETRY = "20s"
"""Caddy tries the agent again for so long, so that a restart of the agent loses no request."""


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """Where Caddy listens. `ask`: on its loopback, for its own questions to the agent."""

    http: int = 80
    https: int = 443
    ask: int = 2020


def configuration(
    certificate: Certificate,
    domain: str,
    *,
    ports: Ports,
    admin: str,
    traffic: str,
    front: str | None = None,
    files: str = "",
) -> dict[str, Any]:
    """Return Caddy's JSON configuration. `admin`, `traffic` and `front` are paths of unix sockets:
    of Caddy's own API, of the agent, and of HAProxy, which the agent stands in for. `files` names
    what the certificate's files hold now: Caddy shows that, and forgets what it read before."""
    routes: list[dict[str, Any]] = [{"handle": [_passing_on(traffic)]}]
    if front is not None:
        routes[0]["match"] = [{"header": {"Upgrade": ["*"]}}]
        routes.append({"handle": [_passing_on(front, traffic)]})
    servers: dict[str, Any] = {"http": {"listen": [f":{ports.http}"], "routes": routes}}
    config: dict[str, Any] = {
        "admin": {"listen": f"unix/{admin}", "origins": ["localhost"]},
        "apps": {
            "http": {"http_port": ports.http, "https_port": ports.https, "servers": servers},
            # Caddy would add its own authority to what this machine trusts.
            "pki": {"certificate_authorities": {"local": {"install_trust": False}}},
        },
    }
    if certificate.kind == "none":
        servers["http"]["automatic_https"] = {"disable": True}
        return config
    servers["https"] = {
        "listen": [f":{ports.https}"],
        "routes": routes,
        "tls_connection_policies": [_shown(certificate, files)],
        "automatic_https": {"disable_redirects": True},
    }
    servers["ask"] = {
        "listen": [f"127.0.0.1:{ports.ask}"],
        "routes": [{"handle": [_asking(traffic)]}],
        "automatic_https": {"disable": True},
    }
    config["apps"]["tls"] = _tls(certificate, ports, files)
    return config


def _passing_on(*sockets: str) -> dict[str, Any]:
    """Return the way to the first of these sockets that answers."""
    return {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": f"unix/{socket}"} for socket in sockets],
        "flush_interval": -1,
        "load_balancing": {
            "selection_policy": {"policy": "first"},
            "try_duration": _RETRY,
            "try_interval": "100ms",
        },
        **({"health_checks": {"passive": {"fail_duration": "1s"}}} if len(sockets) > 1 else {}),
    }


def _shown(certificate: Certificate, files: str) -> dict[str, Any]:
    if certificate.kind != "files":
        return {}
    return {"certificate_selection": {"any_tag": [files]}}


def _asking(traffic: str) -> dict[str, Any]:
    return {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": f"unix/{traffic}"}],
        "headers": {"request": {"set": {"Host": [ASK_HOST]}}},
    }


def _tls(certificate: Certificate, ports: Ports, files: str) -> dict[str, Any]:
    if certificate.kind == "files":
        pair = {"certificate": certificate.cert, "key": certificate.key, "tags": [files]}
        return {"certificates": {"load_files": [pair]}}
    issuer: dict[str, Any] = {"module": "internal"}
    if certificate.kind == "lets-encrypt":
        issuer = {"module": "acme"}
        if certificate.email is not None:
            issuer["email"] = certificate.email
        if certificate.directory is not None:
            issuer["ca"] = certificate.directory
        if certificate.directory_ca is not None:
            issuer["trusted_roots_pem_files"] = [certificate.directory_ca]
    policy = {"on_demand": True, "issuers": [issuer]}
    ask = f"http://127.0.0.1:{ports.ask}{ASK_PATH}"
    return {"automation": {"policies": [policy], "on_demand": {"ask": ask}}}


class CaddyRefused(Exception):
    """Caddy cannot be reached or refuses its configuration; the message says why. `field`: of the
    gateway, which it is about."""

    def __init__(self, message: str, field: str = "host") -> None:
        super().__init__(message)
        self.field = field


async def apply(config: dict[str, Any], admin: str) -> None:
    """Set Caddy's whole configuration over its API. Raises CaddyRefused."""
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(admin),
                timeout=aiohttp.ClientTimeout(total=_SECONDS),
            ) as session,
            session.post(
                "http://localhost/load",
                data=msgspec.json.encode(config),
                headers={"Content-Type": "application/json", "Origin": "http://localhost"},
            ) as answer,
        ):
            if answer.status != 200:
                raise _refusal(await answer.text())
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise CaddyRefused(
            f"Caddy does not answer at {admin} ({error}); is caddy.service running?"
        ) from error


_TAKEN = re.compile(r"listen tcp \S*:(\d+): bind: address already in use")


def _refusal(said: str) -> CaddyRefused:
    """Say what Caddy answered, and what to do about it."""
    with contextlib.suppress(msgspec.DecodeError):
        said = msgspec.json.decode(said, type=dict[str, str]).get("error", said)
    taken = _TAKEN.search(said)
    if taken is not None:
        return CaddyRefused(
            f"Caddy cannot listen at port {taken[1]}: another program on the gateway's machine has "
            f"it; stop that program (`ss -ltnp sport = :{taken[1]}` names it)"
        )
    is_file = "certificate" in said and ("permission denied" in said or "tls:" in said)
    field = "certificate" if is_file else "host"
    return CaddyRefused(f"Caddy refuses its configuration: {said[:500]}", field)
