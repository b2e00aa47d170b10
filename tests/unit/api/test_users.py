"""Users, tokens and what each may see: a change holds as soon as it was answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import ClientPayloadError, ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from common.refusals import Conflict
from controller.service.accounts.users import Credential
from controller.store.base import Changes
from tests.support.waiting import LONG
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN, Controller

HELLO = {"type": "task", "image": "busybox", "commands": ["echo hi"]}


def as_(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
async def client(server: TestServer) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(server) as client:
        yield client


class Person:
    """Asks with one token. Every answer is (status, JSON)."""

    def __init__(self, client: TestClient[Any, Any], token: str) -> None:
        self.client = client
        self.token = token

    async def __call__(self, method: str, path: str, **body: Any) -> tuple[int, Any]:
        sends = method in ("POST", "PUT", "PATCH")
        async with self.client.request(
            method,
            path,
            headers=as_(self.token),
            json=body if sends else None,
            params=None if sends else body,
        ) as answer:
            return answer.status, await answer.json()

    async def watch(self, run: str) -> ClientResponse:
        return await self.client.get(f"/v1/runs/{run}/watch", headers=as_(self.token))


@pytest.fixture
def admin(client: TestClient[Any, Any]) -> Person:
    return Person(client, ADMIN_TOKEN)


@pytest.fixture
def ada(client: TestClient[Any, Any]) -> Person:
    return Person(client, USER_TOKEN)


async def added(admin: Person, client: TestClient[Any, Any], name: str, **body: Any) -> Person:
    status, user = await admin("POST", "/v1/users", name=name, **body)
    assert status == 201, user
    return Person(client, user["token"]["token"])


async def test_a_new_user_gets_in_at_once_and_nobody_can_read_the_token_again(
    admin: Person, client: TestClient[Any, Any], controller: Controller
) -> None:
    bob = await added(admin, client, "bob")
    status, me = await bob("GET", "/v1/me")
    assert (status, me["name"], me["role"], me["bands"]) == (200, "bob", "user", [])
    for path in ("/v1/users", "/v1/tokens"):
        _, answer = await admin("GET", path)
        assert bob.token not in json.dumps(answer)
    (stored,) = [token for token in controller.service.accounts.gate.tokens if token.user == "bob"]
    assert bob.token not in repr(stored)


async def test_users_are_listed_in_pages(admin: Person, client: TestClient[Any, Any]) -> None:
    await added(admin, client, "bob")
    _, first = await admin("GET", "/v1/users", limit=2)
    _, second = await admin("GET", "/v1/users", limit=2, cursor=first["next_cursor"])

    names = [[user["name"] for user in page["users"]] for page in (first, second)]
    assert names == [["ada", "admin"], ["bob"]]
    assert second["next_cursor"] is None


@pytest.mark.parametrize("name", ["", "Bob", "b b", "1bob", "b" * 41, "b\0b", "bób"])
async def test_a_name_that_is_none_is_refused(admin: Person, name: str) -> None:
    status, answer = await admin("POST", "/v1/users", name=name)
    assert (status, answer["error"]["field"]) == (400, "name")


async def test_a_name_is_given_once(admin: Person) -> None:
    status, answer = await admin("POST", "/v1/users", name="ada")
    assert (status, answer["error"]["code"]) == (409, "name_taken")


async def test_only_admins_manage_users(ada: Person) -> None:
    answers = [
        await ada("GET", "/v1/users"),
        await ada("POST", "/v1/users", name="bob"),
        await ada("PUT", "/v1/users/ada/bands", bands=["production"]),
        await ada("DELETE", "/v1/users/admin"),
        await ada("POST", "/v1/tokens", user="admin"),
        await ada("GET", "/v1/tokens", user="admin"),
        await ada("DELETE", "/v1/tokens/t1"),
    ]
    assert [status for status, _ in answers] == [403] * 7


async def test_users_manage_their_own_tokens(ada: Person, client: TestClient[Any, Any]) -> None:
    _, made = await ada("POST", "/v1/tokens", label="laptop")
    laptop = Person(client, made["token"])
    _, listed = await laptop("GET", "/v1/tokens")
    assert sorted(token["label"] for token in listed["tokens"]) == ["", "laptop"]

    assert (await ada("DELETE", f"/v1/tokens/{made['id']}"))[0] == 200
    assert (await laptop("GET", "/v1/me"))[0] == 401
    assert (await ada("GET", "/v1/me"))[0] == 200


async def test_a_removed_users_tokens_end_at_once(
    admin: Person, client: TestClient[Any, Any]
) -> None:
    bob = await added(admin, client, "bob")
    assert (await admin("DELETE", "/v1/users/bob"))[0] == 200
    assert (await bob("GET", "/v1/me"))[0] == 401
    assert (await admin("DELETE", "/v1/users/bob"))[0] == 404


class HeldCommits:
    """Commits of these changes wait until the test sets `go_on`; `waiting` says that one does."""

    def __init__(self, controller: Controller, held: Callable[[Changes], object]) -> None:
        self.waiting, self.go_on = asyncio.Event(), asyncio.Event()
        self._held = held
        self._commit = controller.store.commit

    async def __call__(self, changes: Changes) -> None:
        if self._held(changes):
            self.waiting.set()
            await self.go_on.wait()
        await self._commit(changes)


async def test_a_run_on_its_way_into_the_store_keeps_its_user(
    admin: Person, ada: Person, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldCommits(controller, lambda changes: changes.runs)
    monkeypatch.setattr(controller.store, "commit", held)
    submitting = asyncio.create_task(ada("POST", "/v1/runs", configuration=HELLO, name="hello"))
    await held.waiting.wait()
    by = controller.service.accounts.gate.users["admin"]

    async def go_on() -> None:
        held.go_on.set()

    # The removal runs up to its first wait before the run's commit goes on.
    removal, _ = await asyncio.gather(
        controller.service.accounts.users.remove("ada", by=by), go_on(), return_exceptions=True
    )
    assert isinstance(removal, Conflict)
    assert (removal.code, (await submitting)[0]) == ("user_busy", 201)
    assert (await ada("POST", "/v1/runs", configuration=HELLO))[0] == 201


async def test_nothing_is_made_for_a_user_who_is_being_removed(
    admin: Person, ada: Person, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldCommits(controller, lambda changes: changes.removed_users)
    monkeypatch.setattr(controller.store, "commit", held)
    removing = asyncio.create_task(admin("DELETE", "/v1/users/ada"))
    await held.waiting.wait()
    answers = [
        await ada("POST", "/v1/runs", configuration=HELLO),
        await ada("POST", "/v1/runs/together", runs=[{"configuration": HELLO}]),
        await ada("PUT", "/v1/secrets/PASSWORD", value="long enough"),
        await ada("POST", "/v1/service-keys", service="web"),
    ]
    held.go_on.set()
    assert (await removing)[0] == 200
    assert [status for status, _ in answers] == [401] * 4
    assert "is being removed by an admin" in answers[0][1]["error"]["message"]
    assert not controller.pipeline.runs


async def test_an_open_stream_ends_when_its_token_is_revoked(admin: Person, ada: Person) -> None:
    await ada("POST", "/v1/runs", configuration=HELLO, name="hello")
    watching = await ada.watch("hello")
    assert (await watching.content.readline()).startswith(b'{"run":{')
    await admin("DELETE", "/v1/tokens/t2")
    with pytest.raises(ClientPayloadError):
        async with asyncio.timeout(LONG):
            await watching.read()
    watching.close()


async def test_the_last_admin_and_owners_of_live_runs_stay(admin: Person, ada: Person) -> None:
    await ada("POST", "/v1/runs", configuration=HELLO, name="hello")
    status, last = await admin("DELETE", "/v1/users/admin")
    assert (status, last["error"]["code"]) == (409, "last_admin")
    status, busy = await admin("DELETE", "/v1/users/ada")
    assert (status, busy["error"]["code"]) == (409, "user_busy")
    await ada("POST", "/v1/runs/hello/stop")
    assert (await admin("DELETE", "/v1/users/ada"))[0] == 200


async def test_production_is_for_those_who_were_granted_it(admin: Person, ada: Person) -> None:
    wanted = {**HELLO, "band": "production"}
    status, refused = await ada("POST", "/v1/runs", configuration=wanted)
    assert (status, refused["error"]["code"]) == (422, "band_not_granted")
    assert refused["error"]["field"] == "band"
    _, user = await admin("PUT", "/v1/users/ada/bands", bands=["production"])
    assert user["bands"] == ["production"]
    assert (await ada("POST", "/v1/runs", configuration=wanted))[0] == 201
    await admin("PUT", "/v1/users/ada/bands", bands=[])
    assert (await ada("POST", "/v1/runs", configuration=wanted))[0] == 422
    assert (await admin("POST", "/v1/runs", configuration=wanted))[0] == 201


async def test_another_role_holds_at_once(admin: Person, client: TestClient[Any, Any]) -> None:
    await admin("POST", "/v1/runs", configuration=HELLO, name="secret")
    bob = await added(admin, client, "bob")
    assert (await bob("GET", "/v1/runs/secret"))[0] == 404
    _, user = await admin("PATCH", "/v1/users/bob", role="admin")
    assert user["role"] == "admin"
    assert (await bob("GET", "/v1/runs/secret"))[0] == 200
    watching = await bob.watch("secret")
    await watching.content.readline()
    assert (await bob("PATCH", "/v1/users/bob", role="user"))[0] == 200
    with pytest.raises(ClientPayloadError):
        await watching.read()
    assert (await bob("GET", "/v1/runs/secret"))[0] == 404
    assert (await bob("PATCH", "/v1/users/bob", role="admin"))[0] == 403


async def test_the_last_admin_stays_one(admin: Person) -> None:
    status, refused = await admin("PATCH", "/v1/users/admin", role="user")
    assert (status, refused["error"]["code"]) == (409, "last_admin")
    assert (await admin("PATCH", "/v1/users/admin", role="admin"))[0] == 200
    assert (await admin("PATCH", "/v1/users/nobody", role="admin"))[0] == 404


async def test_a_user_is_shown_to_itself_and_to_admins(admin: Person, ada: Person) -> None:
    for who in (admin, ada):
        status, user = await who("GET", "/v1/users/ada")
        assert (status, user["name"], user["role"]) == (200, "ada", "user")
    assert (await ada("GET", "/v1/users/admin"))[0] == 403
    assert (await admin("GET", "/v1/users/nobody"))[0] == 404


async def test_a_band_that_everybody_may_use_is_not_granted(admin: Person) -> None:
    status, answer = await admin("PUT", "/v1/users/ada/bands", bands=["batch"])
    assert (status, answer["error"]["code"]) == (400, "invalid")


async def test_users_see_their_own_runs_and_admins_all(admin: Person, ada: Person) -> None:
    await admin("POST", "/v1/runs", configuration=HELLO, name="secret")
    await ada("POST", "/v1/runs", configuration=HELLO, name="hello")

    async def seen(who: Person) -> tuple[list[str], set[str]]:
        _, runs = await who("GET", "/v1/runs")
        _, events = await who("GET", "/v1/events")
        names = {run["id"]: run["name"] for run in runs["runs"]}
        return sorted(names.values()), {names[event["run_id"]] for event in events["events"]}

    assert await seen(ada) == (["hello"], {"hello"})
    assert await seen(admin) == (["hello", "secret"], {"hello", "secret"})


@pytest.mark.parametrize(
    "path", ["", "/watch", "/logs", "/logs/ws", "/ssh", "/ports/80", "?events"]
)
async def test_anothers_run_is_as_if_it_were_not_there_whatever_is_asked(
    admin: Person, ada: Person, path: str
) -> None:
    await admin("POST", "/v1/runs", configuration=HELLO, name="secret")
    answers = []
    for name in ("secret", "nobodys"):
        if path == "?events":
            status, answer = await ada("GET", "/v1/events", run=name)
        else:
            status, answer = await ada("GET", f"/v1/runs/{name}{path}")
        assert (status, answer["error"]["field"]) == (404, "run")
        answers.append(answer["error"]["message"].replace(name, "NAME"))
    assert answers[0] == answers[1]


async def test_a_users_own_older_run_comes_before_anothers_of_the_same_name(
    admin: Person, ada: Person
) -> None:
    _, own = await ada("POST", "/v1/runs", configuration=HELLO, name="train")
    await ada("POST", "/v1/runs/train/stop")
    _, other = await admin("POST", "/v1/runs", configuration=HELLO, name="train")

    assert (await ada("GET", "/v1/runs/train"))[1]["id"] == own["id"]
    assert (await admin("GET", "/v1/runs/train"))[1]["id"] == other["id"]
    assert (await ada("GET", f"/v1/runs/{other['id']}"))[0] == 404


async def test_runs_and_events_come_in_pages_by_cursor(ada: Person) -> None:
    for name in ("a", "b", "c"):
        await ada("POST", "/v1/runs", configuration=HELLO, name=name)
    _, first = await ada("GET", "/v1/runs", limit=2)
    _, second = await ada("GET", "/v1/runs", limit=2, cursor=first["next_cursor"])
    runs = [[run["name"] for run in page["runs"]] for page in (first, second)]
    assert (runs, second["next_cursor"]) == ([["c", "b"], ["a"]], None)

    _, everything = await ada("GET", "/v1/events")
    pages: list[Any] = []
    query: dict[str, Any] = {"limit": 2}
    while query.get("cursor", "") is not None:
        _, page = await ada("GET", "/v1/events", **query)
        pages += page["events"]
        query["cursor"] = page["next_cursor"]
    assert pages == everything["events"]


async def test_a_cursor_of_another_list_is_named(ada: Person) -> None:
    await ada("POST", "/v1/runs", configuration=HELLO, name="train")
    for path in ("/v1/events", "/v1/runs", "/v1/runs/train/attempts"):
        status, answer = await ada("GET", path, cursor="train")
        assert (path, status, answer["error"]["field"]) == (path, 400, "cursor")


async def test_a_token_expires_and_takes_its_streams_with_it(
    ada: Person, client: TestClient[Any, Any], controller: Controller
) -> None:
    """What ends a revoked token's streams is called, so no stream has to be open in time."""
    status, made = await ada("POST", "/v1/tokens", label="brief", expires_in=0.05)
    assert (status, made["expires_at"] > made["created_at"]) == (201, True)
    gate, ended = controller.service.accounts.gate, asyncio.Event()
    stored = next(one for one in gate.tokens if one.id == made["id"])
    with gate.until_it_ends(Credential(token=stored), ended.set):
        async with asyncio.timeout(LONG):
            await ended.wait()
    status, refused = await Person(client, made["token"])("GET", "/v1/me")
    assert (status, refused["error"]["code"]) == (401, "token_expired")
    assert made["id"] in [one["id"] for one in (await ada("GET", "/v1/tokens"))[1]["tokens"]]


@pytest.mark.parametrize("seconds", [0, -1, 1e12])
async def test_a_lifetime_that_is_none_is_refused(ada: Person, seconds: float) -> None:
    status, refused = await ada("POST", "/v1/tokens", expires_in=seconds)
    assert (status, refused["error"]["field"]) == (400, "expires_in")


async def test_callers_learn_which_token_they_use(ada: Person) -> None:
    me = (await ada("GET", "/v1/me"))[1]
    assert (me["name"], me["token"]["id"], me["token"]["expires_at"]) == ("ada", "t2", None)
