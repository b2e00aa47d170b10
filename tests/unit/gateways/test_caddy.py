"""Caddy's configuration for each kind of certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.wire.gateway import Certificate
from gateway.caddy import configuration, gets_certificates, storage_of

HOSTS = ("web.apps.test", "api.apps.test")


def made(**certificate: Any) -> dict[str, Any]:
    return configuration(
        Certificate(**certificate), HOSTS, admin="/admin", storage=Path("/kept"), challenges=2080
    )


def issuer(config: dict[str, Any]) -> dict[str, Any]:
    (policy,) = config["apps"]["tls"]["automation"]["policies"]
    (found,) = policy["issuers"]
    assert isinstance(found, dict)
    return found


def test_an_authority_is_asked_for_each_host_and_challenges_come_from_haproxy() -> None:
    config = made(kind="lets-encrypt", email="a@b.c", directory="https://d", directory_ca="/ca")
    assert config["apps"]["tls"]["certificates"] == {"automate": ["api.apps.test", "web.apps.test"]}
    assert issuer(config) == {
        "module": "acme",
        "email": "a@b.c",
        "ca": "https://d",
        "trusted_roots_pem_files": ["/ca"],
        "challenges": {
            "bind_host": "127.0.0.1",
            "http": {"alternate_port": 2080},
            "tls-alpn": {"disabled": True},
        },
    }


def test_the_internal_authority_is_caddys_own() -> None:
    assert issuer(made(kind="internal")) == {"module": "internal"}


@pytest.mark.parametrize("kind", ["lets-encrypt", "internal", "none", "files"])
def test_caddy_serves_nobody_and_adds_nothing_to_what_the_machine_trusts(kind: str) -> None:
    config = made(kind=kind)
    assert config["admin"] == {"listen": "unix//admin", "origins": ["localhost"]}
    assert "http" not in config["apps"]
    authorities = config["apps"]["pki"]["certificate_authorities"]
    assert authorities == {"local": {"install_trust": False}}
    assert ("tls" in config["apps"]) == gets_certificates(Certificate(kind=kind))


def test_what_one_authority_signed_is_not_mistaken_for_what_another_one_did() -> None:
    known = [
        Certificate(kind="internal"),
        Certificate(),
        Certificate(directory="https://a"),
        Certificate(directory="https://b"),
    ]
    assert len({storage_of(Path("/kept"), one) for one in known}) == len(known)
    mailed = Certificate(directory="https://a", email="a@b.c")
    assert storage_of(Path("/kept"), mailed) == storage_of(Path("/kept"), known[2])
