"""Caddy's configuration, as a whole: which host names it gets certificates for, and from whom.

No request passes through Caddy. It asks an authority, answers its challenges, renews in time, and
keeps the certificates in its storage, from where they go to HAProxy (`gateway.certificates`).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from fairlead.wire.decoders import decoder_of
from fairlead.wire.gateway import Certificate

_SECONDS = 20.0


def gets_certificates(certificate: Certificate) -> bool:
    """Return whether Caddy gets the certificates of this gateway."""
    return certificate.kind in {"lets-encrypt", "internal"}


def storage_of(folder: Path, certificate: Certificate) -> Path:
    """Return where Caddy keeps the certificates of this authority, and no others."""
    if certificate.directory is None:
        return folder / certificate.kind
    return folder / f"acme-{hashlib.sha256(certificate.directory.encode()).hexdigest()[:12]}"


def configuration(
    certificate: Certificate, hosts: Iterable[str], *, admin: str, storage: Path, challenges: int
) -> dict[str, Any]:
    """Return Caddy's JSON configuration. `admin`: the unix socket of its own API; `challenges`: the
    port of the loopback at which it answers an authority's challenges."""
    config: dict[str, Any] = {
        "admin": {"listen": f"unix/{admin}", "origins": ["localhost"]},
        "storage": {"module": "file_system", "root": str(storage)},
        # Caddy would add its own authority to what this machine trusts.
        "apps": {"pki": {"certificate_authorities": {"local": {"install_trust": False}}}},
    }
    if gets_certificates(certificate):
        config["apps"]["tls"] = {
            "certificates": {"automate": sorted(hosts)},
            "automation": {"policies": [{"issuers": [_issuer(certificate, challenges)]}]},
        }
    return config


def _issuer(certificate: Certificate, challenges: int) -> dict[str, Any]:
    if certificate.kind == "internal":
        return {"module": "internal"}
    issuer: dict[str, Any] = {
        "module": "acme",
        "challenges": {
            "bind_host": "127.0.0.1",
            "http": {"alternate_port": challenges},
            # HAProxy has port 443; it passes only the HTTP challenge on to Caddy.
            "tls-alpn": {"disabled": True},
        },
    }
    given = {
        "email": certificate.email,
        "ca": certificate.directory,
        "trusted_roots_pem_files": certificate.directory_ca and [certificate.directory_ca],
    }
    return issuer | {name: value for name, value in given.items() if value is not None}


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
            f"Caddy does not answer at {admin} ({error}); is fairlead-caddy.service running?"
        ) from error


def _refusal(answer: str) -> CaddyRefused:
    """Say what Caddy answered."""
    with contextlib.suppress(msgspec.DecodeError):
        answer = decoder_of(dict[str, str]).decode(answer).get("error", answer)
    # Caddy names no field: its message says which part of the configuration it could not load.
    field = "certificate" if "tls" in answer else "host"
    return CaddyRefused(f"Caddy refuses its configuration: {answer[:500]}", field)
