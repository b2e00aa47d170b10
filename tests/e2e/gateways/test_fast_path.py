"""Public services at a gateway: HAProxy carries their requests past the agent."""

from __future__ import annotations

import ssl
from functools import partial
from typing import Any

import pytest

from common.tokens import digest
from tests.e2e.gateways.conftest import AddNode
from tests.e2e.gateways.test_gateway import fields_of, nodes_of, trusted
from tests.support.gateway import GatewayMachine
from tests.support.lab import RunLab
from tests.support.load import Load
from tests.support.waiting import LONG, wait_until

pytestmark = pytest.mark.e2e


def public(**fields: Any) -> dict[str, Any]:
    return fields_of(auth=False, **fields)


def load_of(gateway: GatewayMachine, name: str, context: ssl.SSLContext) -> Load:
    """Requests without a token, which need no decision of the agent's."""
    return Load(lambda: gateway.get(name, context=context)[:2])


def requests_of(lab: RunLab, name: str) -> float:
    """Requests a second at the service, as the controller knows it."""
    (group,) = lab.get(f"/v1/services/{name}")["groups"]
    return float(group["rps"] or 0)


def test_requests_go_on_while_the_agent_is_dead_or_restarted(
    lab: RunLab, gateway: GatewayMachine
) -> None:
    lab.submit("open", **public())
    context = trusted(gateway, lab, "open")
    gateway.wait_until_fast("open")
    load = load_of(gateway, "open", context)
    with load.running():
        wait_until(lambda: requests_of(lab, "open") > 1 or load.failed, LONG, "counted requests")
        gateway.agent.kill9()
        load.wait_for(50)
        gateway.start_agent()
        load.wait_for(50)
        gateway.wait_until_fast("open")
        lab.apply("open", **public(env={"VERSION": "2"})).succeeded()
        wait_until(lambda: len(load.seen) == 2 or load.failed, LONG, "the new version")
        load.wait_for(30)
        gateway.agent.stop()
        gateway.start_agent()
        load.wait_for(30)
    assert load.failed == []


def test_a_haproxy_that_was_killed_serves_by_tls_as_soon_as_it_is_back(
    lab: RunLab, gateway: GatewayMachine
) -> None:
    lab.submit("back", **public())
    context = trusted(gateway, lab, "back")
    gateway.wait_until_fast("back")
    gateway.haproxy.kill9()
    gateway.start_haproxy()
    assert gateway.get("back", context=context)[0] == 200
    gateway.wait_until_fast("back")
    assert gateway.get("back", context=context)[0] == 200


def test_replicas_come_go_and_die_without_a_lost_request_past_the_agent(
    lab: RunLab, gateway: GatewayMachine, add_node: AddNode
) -> None:
    half = {"cpu": 0.1, "memory": "1500MB"}
    lab.submit("busy", **public(resources=half))
    context = trusted(gateway, lab, "busy")
    add_node("n2")
    gateway.wait_until_fast("busy")
    load = load_of(gateway, "busy", context)
    with load.running():
        lab.apply("busy", **public(resources=half, replicas=2)).succeeded()
        wait_until(lambda: len(load.seen) == 2 or load.failed, LONG, "two replicas")
        lab.cli("node", "drain", "n1").succeeded()
        drained = ["n2", "n2"]
        wait_until(lambda: nodes_of(lab, "busy") == drained or load.failed, LONG, "the drain")
        load.wait_for(50)
        attempts = [one for job in lab.inspect("busy")["jobs"] for one in job["attempts"]]
        killed = next(one["id"] for one in attempts if one["status"] == "running")
        container = lab.dockerd.docker("ps", "-q", "--filter", f"name={killed}")
        lab.dockerd.docker("kill", "-s", "KILL", container)
        load.wait_for(200)
    assert load.failed == []


def test_a_token_that_was_let_in_passes_the_agent_and_others_do_not(
    lab: RunLab, gateway: GatewayMachine
) -> None:
    lab.submit("closed", **fields_of())
    context = trusted(gateway, lab, "closed")
    gateway.wait_until_fast("closed")
    made = lab.cli("service", "key", "add", "closed", "--json").succeeded().json
    key = made["secret"]

    def ask(token: str, **headers: str) -> tuple[int, str]:
        sent = {"Authorization": f"Bearer {token}"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return gateway.get("closed", "/seen", headers=sent, context=context)[:2]

    passed = partial(gateway.admits, digest(key))
    wait_until(lambda: ask(key)[0] == 200 and passed(), LONG, "an admitted token")
    gateway.agent.kill9()
    status, seen = ask(key)
    assert (status, "authorization" in seen) == (200, False)
    gateway.start_agent()
    wait_until(lambda: lab.get("/v1/gateways/main")["status"] == "connected", what="the agent")
    for token in ("fl_wrong", f"{key}x", f"{key}, Bearer {key}"):
        assert ask(token, X_Fairlead_Admitted="1")[0] == 401
    assert gateway.get("closed", headers={"X-Fairlead-Admitted": "1"}, context=context)[0] == 401
    gateway.wait_until_fast("closed")
    wait_until(lambda: ask(key)[0] == 200 and passed(), LONG, "an admitted token")
    lab.cli("service", "key", "revoke", made["id"]).succeeded()
    wait_until(lambda: not passed(), LONG, "the revocation")
    assert ask(key)[0] == 401


def test_a_replica_sees_no_token_of_ours_and_only_true_forwarded_headers(
    lab: RunLab, gateway: GatewayMachine
) -> None:
    lab.submit("echo", **public())
    context = trusted(gateway, lab, "echo")
    gateway.wait_until_fast("echo")

    def seen(**headers: str) -> dict[str, str]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        _, text, _ = gateway.get("echo", "/seen", headers=sent, context=context)
        return dict(line.split("=", 1) for line in text.splitlines())

    forged = {"X_Forwarded_For": "1.2.3.4", "X_Forwarded_Host": "x", "X_Forwarded_Proto": "http"}
    got = seen(Forwarded="for=1.2.3.4", X_Forwarded_Prefix="/x", Cookie="a=b", **forged)
    assert (got["x-forwarded-for"], got["x-forwarded-proto"]) == ("127.0.0.1", "https")
    assert got["x-forwarded-host"] == got["host"] == "echo.apps.test"
    assert got["cookie"] == "a=b"
    assert {"forwarded", "x-forwarded-prefix"}.isdisjoint(got)
    assert "authorization" not in seen(Authorization=f"Bearer {lab.controller.token}")
    assert seen(Authorization="Basic x")["authorization"] == "Basic x"
    assert seen(Cookie="fairlead-service=x; a=b")["cookie"] == "a=b"
    assert gateway.get("echo", "/../x", context=context)[0] == 400
