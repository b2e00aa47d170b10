"""Gateways over REST: who adds them, which services use them, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from common.tokens import digest
from controller.service.machines.gateways import GatewayRequest, GatewayService
from fairlead.wire.gateway import Certificates, HostCertificate, Question
from tests.doubles.gateway import KEY, FakeGateway
from tests.support.waiting import eventually
from tests.unit.api.conftest import ADMIN_TOKEN, HOST_KEY, USER_TOKEN, Controller
from tests.unit.api.test_services import SERVICE
from tests.unit.api.test_users import Person

MAIN = {
    "name": "main",
    "domain": "apps.example.com",
    "host": "gate.example.com",
    "host_key": HOST_KEY,
    "certificate": {"kind": "internal"},
}


@pytest.fixture
async def admin(server: TestServer) -> Any:
    async with TestClient(server) as client:
        yield Person(client, ADMIN_TOKEN)


async def add(admin: Person, **changes: Any) -> dict[str, Any]:
    status, made = await admin("POST", "/v1/gateways", **{**MAIN, **changes})
    assert status == 201, made
    assert isinstance(made, dict)
    return made


async def submit(person: Person, **more: Any) -> tuple[int, dict[str, Any]]:
    return await person("POST", "/v1/runs", configuration={**SERVICE, **more}, name="web")


async def plan(person: Person, **more: Any) -> tuple[int, dict[str, Any]]:
    return await person("POST", "/v1/plan", configuration={**SERVICE, **more}, name="web")


async def test_a_gateway_is_added_shown_changed_and_removed(
    admin: Person, controller: Controller
) -> None:
    made = await add(admin)
    assert (made["status"], made["key"], made["default"]) == ("connected", KEY, False)
    status, changed = await admin("PUT", "/v1/gateways/main", **{**MAIN, "default": True})
    assert (status, changed["default"], changed["created_at"]) == (200, True, made["created_at"])
    _, listed = await admin("GET", "/v1/gateways")
    assert [one["name"] for one in listed["gateways"]] == ["main"]
    (stored,) = (await controller.store.load()).gateways
    assert (stored.domain, stored.is_default, stored.key) == ("apps.example.com", True, KEY)
    assert (await admin("DELETE", "/v1/gateways/main"))[0] == 200
    assert (await admin("GET", "/v1/gateways/main"))[0] == 404
    assert (await controller.store.load()).gateways == ()


async def test_only_one_gateway_is_the_default(admin: Person) -> None:
    await add(admin, default=True)
    await add(admin, name="other", domain="other.example.com", host="other", default=True)
    _, listed = await admin("GET", "/v1/gateways")
    assert [(one["name"], one["default"]) for one in listed["gateways"]] == [
        ("main", False),
        ("other", True),
    ]


async def test_a_gateway_whose_agent_does_not_answer_is_not_added(admin: Person) -> None:
    body = {**MAIN, "domain": "away.example.com"}
    status, answer = await admin("POST", "/v1/gateways", **body)
    assert (status, answer["error"]["code"]) == (503, "gateway_unreachable")
    assert "nothing answers there" in answer["error"]["message"]
    assert (await admin("GET", "/v1/gateways"))[1]["gateways"] == []


async def test_of_a_request_that_its_client_broke_off_nothing_stays(
    admin: Person, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def never(_service: GatewayService, _name: str) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(GatewayService, "_settles", never)
    root = next(
        user for user in controller.service.accounts.gate.users.values() if user.role == "admin"
    )
    request = msgspec.convert(MAIN, GatewayRequest)
    adding = asyncio.create_task(controller.service.gateways.add(request, user=root))
    await asked.wait()
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert (await admin("GET", "/v1/gateways"))[1]["gateways"] == []


async def test_settings_that_the_agent_cannot_use_are_refused_and_change_nothing(
    admin: Person, controller: Controller
) -> None:
    agent = controller.agents["main"] = FakeGateway()
    agent.refusals = {"files": "/key.pem does not belong to the certificate"}
    files = {"kind": "files", "cert": "/cert.pem", "key": "/key.pem"}
    for method, path in (("POST", "/v1/gateways"), ("PUT", "/v1/gateways/main")):
        status, answer = await admin(method, path, **{**MAIN, "certificate": files})
        assert (status, answer["error"]["field"]) == (422, "certificate")
        assert "/key.pem does not belong to the certificate" in answer["error"]["message"]
        assert (await admin("GET", "/v1/gateways"))[1]["gateways"] == []
    await add(admin)
    status, _ = await admin("PUT", "/v1/gateways/main", **{**MAIN, "certificate": files})
    _, shown = await admin("GET", "/v1/gateways/main")
    assert (status, shown["certificate"]["kind"]) == (422, "internal")


async def test_a_gateway_shows_the_certificate_of_each_host(
    admin: Person, controller: Controller
) -> None:
    await add(admin)
    controller.agents["main"].say(
        Certificates(
            hosts=(
                HostCertificate(host="web.apps.example.com", issuer="CN=x", expires=86400.0),
                HostCertificate(host="new.apps.example.com", error="Caddy has none"),
            )
        )
    )
    session = controller.gateways.session("main")
    assert session is not None
    await session.until(lambda one: bool(one.certificates))
    _, shown = await admin("GET", "/v1/gateways/main")
    assert [tuple(one.values()) for one in shown["certificates"]] == [
        ("web.apps.example.com", "CN=x", "1970-01-02T00:00:00.000Z", None),
        ("new.apps.example.com", None, None, "Caddy has none"),
    ]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "No!"}, "name"),
        ({"domain": "no_domain"}, "domain"),
        ({"domain": "*.example.com"}, "domain"),
        ({"socket": "agent.sock"}, "socket"),
        ({"host": None, "host_key": None, "local_socket": "agent.sock"}, "local_socket"),
        ({"host": None}, "host"),
        ({"local_socket": "/run/agent.sock"}, "host"),
        ({"port": 0}, "port"),
        ({"host": "gate.test:2222"}, "host"),
        ({"host": "https://gate.test"}, "host"),
        ({"host": "-oProxyCommand=x"}, "host"),
        ({"user": "-oProxyCommand=x"}, "user"),
        ({"host_key": "nonsense"}, "host_key"),
        ({"certificate": {"kind": "gold"}}, "certificate"),
        ({"certificate": {"kind": "files", "cert": "/c.pem"}}, "certificate"),
        ({"certificate": {"kind": "none", "email": "a@b"}}, "certificate"),
        ({"certificate": {"kind": "lets-encrypt", "email": "nobody"}}, "certificate.email"),
    ],
)
async def test_a_wrong_field_is_named(admin: Person, changes: dict[str, Any], field: str) -> None:
    status, answer = await admin("POST", "/v1/gateways", **{**MAIN, **changes})
    assert (status, answer["error"]["field"]) == (400, field)


async def test_only_an_admin_changes_gateways_and_two_never_share_a_domain(
    admin: Person, server: TestServer
) -> None:
    await add(admin)
    for domain, field in ((MAIN["domain"], "domain"), ("other.example.com", "host")):
        body = {**MAIN, "name": "other", "domain": domain}
        status, answer = await admin("POST", "/v1/gateways", **body)
        assert (status, answer["error"]["field"]) == (409, field)
    async with TestClient(server) as client:
        ada = Person(client, USER_TOKEN)
        assert (await ada("POST", "/v1/gateways", **MAIN))[0] == 403
        assert (await ada("DELETE", "/v1/gateways/main"))[0] == 403
        assert (await ada("GET", "/v1/gateways"))[0] == 200


async def test_a_service_with_a_gateway_claims_its_host_name_and_shows_its_url(
    admin: Person, controller: Controller
) -> None:
    await add(admin)
    status, _ = await submit(admin, gateway="main", https=True)
    assert status == 201
    agent = controller.agents["main"]
    assert agent.claims == ["web.apps.example.com"]
    _, shown = await admin("GET", "/v1/services/web")
    assert (shown["gateway"], shown["url"]) == ("main", "https://web.apps.example.com/")
    _, inspected = await admin("GET", f"/v1/runs/{shown['id']}")
    assert inspected["url"] == shown["url"]
    await eventually(lambda: agent.snapshots and agent.snapshots[-1].services)
    assert agent.snapshots[-1].services[0].host == "web.apps.example.com"
    status, answer = await admin("DELETE", "/v1/gateways/main")
    assert (status, answer["error"]["code"]) == (409, "gateway_in_use")


async def test_a_public_port_other_than_the_gateways_own_is_refused(admin: Person) -> None:
    await add(admin)
    status, answer = await submit(admin, gateway="main", port="8080:8000")
    assert (status, answer["error"]["field"]) == (422, "port")
    assert "write `port: 8000`" in answer["error"]["message"]
    status, _ = await submit(admin, gateway="main", port="80:8000")
    assert status == 201


async def test_a_service_uses_the_default_gateway_unless_it_says_otherwise(admin: Person) -> None:
    await add(admin, default=True, certificate={"kind": "none"})
    await submit(admin)
    _, shown = await admin("GET", "/v1/services/web")
    assert (shown["gateway"], shown["url"]) == ("main", "http://web.apps.example.com/")
    status, _ = await admin(
        "POST", "/v1/runs", configuration={**SERVICE, "gateway": False}, name="own"
    )
    assert status == 201
    _, own = await admin("GET", "/v1/services/own")
    assert (own["gateway"], own["url"]) == (None, None)


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        ({"gateway": "other"}, "gateway", "there is no gateway other (there: main)"),
        ({"gateway": "main", "https": True}, "https", "main has none"),
        ({"https": True}, "https", "https: true needs a gateway"),
    ],
)
async def test_a_service_that_no_gateway_can_serve_is_refused(
    admin: Person, fields: dict[str, Any], field: str, sentence: str
) -> None:
    await add(admin, certificate={"kind": "none"})
    status, answer = await submit(admin, **fields)
    assert (status, answer["error"]["field"]) == (422, field)
    assert sentence in answer["error"]["message"]
    assert await plan(admin, **fields) == (status, answer)


async def test_a_plan_of_a_live_service_keeps_its_gateway(admin: Person) -> None:
    await add(admin)
    assert (await submit(admin, gateway="main", https=True))[0] == 201
    status, _ = await plan(admin, https=True)
    assert status == 200


async def test_a_service_is_refused_while_its_gateway_is_away_or_its_host_name_taken(
    admin: Person, controller: Controller
) -> None:
    await add(admin)
    agent = controller.agents["main"]
    agent.taken.add("web.apps.example.com")
    status, answer = await submit(admin, gateway=True)
    assert (status, answer["error"]["code"]) == (409, "host_taken")
    agent.taken.clear()
    agent.is_away = True
    agent.hang_up()
    session = controller.gateways.session("main")
    assert session is not None
    await eventually(lambda: not session.is_up)
    status, answer = await submit(admin, gateway=True)
    assert (status, answer["error"]["code"]) == (503, "gateway_unreachable")
    assert (await admin("GET", "/v1/runs?name=web"))[1]["runs"] == []


async def test_a_gateway_cannot_change_in_place_and_stays_when_none_is_named(
    admin: Person,
) -> None:
    await add(admin)
    await add(admin, name="other", domain="other.example.com", host="other")
    await submit(admin, gateway="main")
    path = "/v1/services/web/deployments"
    body = {**SERVICE, "gateway": "other"}
    status, answer = await admin("POST", path, configuration=body)
    assert (status, answer["error"]["field"]) == (409, "gateway")
    status, made = await admin("POST", path, configuration={**SERVICE, "replicas": 2})
    assert (status, made["service"]["gateway"]) == (200, "main")


async def test_a_gateway_asks_who_may_use_a_service_and_hears_of_revoked_tokens(
    admin: Person, controller: Controller
) -> None:
    await add(admin)
    await submit(admin, gateway="main")
    agent = controller.agents["main"]
    run_id = next(iter(controller.pipeline.runs))
    _, key = await admin("POST", "/v1/service-keys", service="web", label="")
    secrets = (ADMIN_TOKEN, USER_TOKEN, key["secret"], "fl_unknown")
    for number, secret in enumerate(secrets):
        agent.say(Question(id=number, run_id=run_id, digest=digest(secret)))
    agent.say(Question(id=4, run_id="gone", digest=digest(ADMIN_TOKEN)))
    await eventually(lambda: len(agent.answers) == 5)
    assert [(one.id, one.status) for one in agent.answers] == [
        (0, 200),
        (1, 403),
        (2, 200),
        (3, 401),
        (4, 404),
    ]
    await admin("DELETE", f"/v1/service-keys/{key['id']}")
    await eventually(lambda: agent.revoked)
    assert agent.revoked == [digest(key["secret"])]
