"""Caddy's configuration for each kind of certificate."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.caddy import ASK_HOST, Ports, configuration
from gateway.schemas import Certificate


def made(files: str = "", **certificate: Any) -> dict[str, Any]:
    return configuration(
        Certificate(**certificate),
        "apps.test",
        ports=Ports(),
        admin="/admin",
        traffic="/traffic",
        files=files,
    )


def servers(config: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = config["apps"]["http"]["servers"]
    return found


def test_every_request_goes_to_the_agent_and_none_is_lost_in_its_restart() -> None:
    found = servers(made(kind="internal"))
    for name, port in (("http", ":80"), ("https", ":443")):
        (route,) = found[name]["routes"]
        (proxy,) = route["handle"]
        assert found[name]["listen"] == [port]
        assert proxy["upstreams"] == [{"dial": "unix//traffic"}]
        assert proxy["load_balancing"]["try_duration"] == "20s"


def test_certificates_are_made_on_demand_for_hosts_that_the_agent_knows() -> None:
    config = made(kind="lets-encrypt", email="a@b.c", directory="https://d", directory_ca="/ca")
    automation = config["apps"]["tls"]["automation"]
    (policy,) = automation["policies"]
    (issuer,) = policy["issuers"]
    assert policy["on_demand"]
    assert issuer == {
        "module": "acme",
        "email": "a@b.c",
        "ca": "https://d",
        "trusted_roots_pem_files": ["/ca"],
    }
    assert automation["on_demand"]["ask"] == "http://127.0.0.1:2020/ask"
    (asking,) = servers(config)["ask"]["routes"][0]["handle"]
    assert asking["headers"]["request"]["set"]["Host"] == [ASK_HOST]


@pytest.mark.parametrize("kind", ["lets-encrypt", "internal", "none", "files"])
def test_caddy_talks_over_a_socket_and_adds_nothing_to_what_the_machine_trusts(kind: str) -> None:
    config = made(kind=kind, **({"cert": "/c", "key": "/k"} if kind == "files" else {}))
    assert config["admin"] == {"listen": "unix//admin", "origins": ["localhost"]}
    authorities = config["apps"]["pki"]["certificate_authorities"]
    assert authorities == {"local": {"install_trust": False}}


def test_without_a_certificate_only_plain_http_is_served() -> None:
    config = made(kind="none")
    assert set(servers(config)) == {"http"}
    assert "tls" not in config["apps"]


def test_given_files_are_loaded_and_nobody_is_asked() -> None:
    config = made(kind="files", cert="/c.pem", key="/k.pem", files="v1")
    pair = {"certificate": "/c.pem", "key": "/k.pem", "tags": ["v1"]}
    assert config["apps"]["tls"] == {"certificates": {"load_files": [pair]}}
    (policy,) = servers(config)["https"]["tls_connection_policies"]
    assert policy == {"certificate_selection": {"any_tag": ["v1"]}}
