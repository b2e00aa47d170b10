"""Keys of services: their owners and admins make them, for a name that is theirs."""

from __future__ import annotations

from aiohttp.test_utils import TestClient, TestServer

from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN, Controller
from tests.unit.api.test_users import HELLO, Person

KEYS = "/v1/service-keys"


async def test_a_key_is_made_listed_without_its_secret_and_revoked(
    controller: Controller, server: TestServer
) -> None:
    async with TestClient(server) as client:
        ada, admin = Person(client, USER_TOKEN), Person(client, ADMIN_TOKEN)
        status, made = await ada("POST", KEYS, service="api", label="ci")
        assert (status, made["user"], made["secret"][:4]) == (201, "ada", "flk_")
        gate = controller.service.accounts.gate
        found = gate.service_key(made["secret"], "api", "ada")
        assert found is not None
        assert found.id == made["id"]
        assert gate.service_key(made["secret"], "api", "admin") is None
        _, listed = await admin("GET", KEYS, service="api")
        assert [key["id"] for key in listed["keys"]] == [made["id"]]
        assert "secret" not in listed["keys"][0]
        assert (await controller.store.load()).service_keys == (found,)
        assert (await ada("DELETE", f"{KEYS}/{made['id']}"))[0] == 200
        assert gate.service_key(made["secret"], "api", "ada") is None


async def test_a_key_of_another_users_service_is_the_owners_or_an_admins_to_make(
    controller: Controller, server: TestServer
) -> None:
    async with TestClient(server) as client:
        ada, admin = Person(client, USER_TOKEN), Person(client, ADMIN_TOKEN)
        await admin("POST", "/v1/runs", configuration={**HELLO, "name": "theirs"})
        await ada("POST", "/v1/runs", configuration={**HELLO, "name": "own"})
        for name in ("theirs", "nobodys"):
            status, useless = await ada("POST", KEYS, service=name)
            assert (status, useless["user"]) == (201, "ada")
            assert (
                controller.service.accounts.gate.service_key(useless["secret"], name, "admin")
                is None
            )
            await ada("DELETE", f"{KEYS}/{useless['id']}")
        _, made = await admin("POST", KEYS, service="own")
        assert made["user"] == "ada"
        _, other = await admin("POST", KEYS, service="theirs")
        assert (await ada("DELETE", f"{KEYS}/{other['id']}"))[0] == 404
        _, listed = await ada("GET", KEYS)
        assert [key["id"] for key in listed["keys"]] == [made["id"]]


async def test_a_key_says_whether_its_owner_has_such_a_service_now(server: TestServer) -> None:
    serving = {"type": "service", "commands": ["true"], "image": "i", "port": 8000}
    async with TestClient(server) as client:
        ada, admin = Person(client, USER_TOKEN), Person(client, ADMIN_TOKEN)
        await ada("POST", "/v1/runs", configuration={**serving, "name": "web"})
        await admin("POST", "/v1/runs", configuration={**serving, "name": "theirs"})
        await ada("POST", "/v1/runs", configuration={**HELLO, "name": "task"})
        names = ("web", "later", "theirs", "task")
        answers = [(await ada("POST", KEYS, service=name))[1]["live"] for name in names]
    assert answers == [True, False, False, False]


async def test_a_wrong_name_or_label_is_refused_with_its_field(server: TestServer) -> None:
    async with TestClient(server) as client:
        ada = Person(client, USER_TOKEN)
        for body, field in (
            ({"service": "No_Label"}, "service"),
            ({"service": "api", "label": "\n"}, "label"),
        ):
            status, answer = await ada("POST", KEYS, **body)
            assert (status, answer["error"]["field"]) == (400, field)
