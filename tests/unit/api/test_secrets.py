"""Stored secrets: who sets them, what a submission may name, and a value that no answer has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.api.conftest import Controller
from tests.unit.api.test_users import HELLO, Person, ada, admin, client

__all__ = ["ada", "admin", "client"]

CANARY = "canary-0f6e21"
NAMES = {**HELLO, "env": {"TOKEN": "${{ secrets.TOKEN }}"}}


async def test_a_secret_is_set_changed_listed_and_deleted_without_its_value(ada: Person) -> None:
    status, made = await ada("PUT", "/v1/secrets/TOKEN", value=CANARY)
    assert (status, made["name"], made["shared"]) == (200, "TOKEN", False)
    _, changed = await ada("PUT", "/v1/secrets/TOKEN", value=CANARY + "2")
    assert changed["created_at"] == made["created_at"]
    _, listed = await ada("GET", "/v1/secrets")
    assert [secret["name"] for secret in listed["secrets"]] == ["TOKEN"]
    assert (await ada("DELETE", "/v1/secrets/TOKEN"))[0] == 200
    status, gone = await ada("DELETE", "/v1/secrets/TOKEN")
    assert (status, "there is no secret 'TOKEN'" in gone["error"]["message"]) == (404, True)
    assert CANARY not in json.dumps([made, changed, listed, gone])


async def test_users_do_not_see_each_others_secrets_and_admins_share_some(
    ada: Person, admin: Person
) -> None:
    await ada("PUT", "/v1/secrets/OWN", value=CANARY)
    status, refused = await ada("PUT", "/v1/secrets/ALL", value=CANARY, shared=True)
    assert (status, refused["error"]["code"]) == (403, "forbidden")
    assert (await admin("PUT", "/v1/secrets/ALL", value=CANARY, shared=True))[0] == 200
    seen = [
        [secret["name"] for secret in (await person("GET", "/v1/secrets"))[1]["secrets"]]
        for person in (ada, admin)
    ]
    assert seen == [["ALL", "OWN"], ["ALL"]]


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("A-B", CANARY, "secret"),
        ("A", "", "value"),
        ("A", "abc", "value"),
        ("A", f"{CANARY}\0", "value"),
        ("A", CANARY * 10_000, "value"),
    ],
)
async def test_a_secret_that_no_job_could_have_is_refused(
    ada: Person, name: str, value: str, field: str
) -> None:
    status, refused = await ada("PUT", f"/v1/secrets/{name}", value=value)
    assert (status, refused["error"]["field"]) == (400, field)
    assert CANARY not in json.dumps(refused)


async def test_a_submission_that_names_a_missing_secret_is_refused_with_the_fix(
    ada: Person, admin: Person
) -> None:
    await admin("PUT", "/v1/secrets/TOKEN", value=CANARY)
    status, refused = await ada("POST", "/v1/runs", configuration=NAMES)
    error = refused["error"]
    assert (status, error["code"], error["field"]) == (422, "secret_missing", "env.TOKEN")
    assert "store it with `fairlead secret set TOKEN`" in error["message"]
    _, plan = await ada("POST", "/v1/plan", configuration=NAMES)
    assert "there is no secret TOKEN of ada" in json.dumps(plan)


async def test_a_run_that_names_a_secret_is_stored_and_shown_without_its_value(
    ada: Person, controller: Controller
) -> None:
    await ada("PUT", "/v1/secrets/TOKEN", value=CANARY)
    status, run = await ada("POST", "/v1/runs", configuration=NAMES)
    assert status == 201
    (state,) = controller.pipeline.runs.values()
    assert state.jobs[0].spec.env == {"TOKEN": "${{ secrets.TOKEN }}"}
    _, shown = await ada("GET", f"/v1/runs/{run['id']}")
    _, events = await ada("GET", f"/v1/runs/{run['id']}/events")
    assert CANARY not in json.dumps([run, shown, events])


async def test_the_key_is_rotated_by_admins_and_all_secrets_still_open(
    ada: Person, admin: Person, controller: Controller
) -> None:
    for number in range(3):
        await ada("PUT", f"/v1/secrets/S{number}", value=f"{CANARY}{number}")
    before = {secret.name: secret.sealed for secret in (await controller.store.load()).secrets}
    assert (await ada("POST", "/v1/secrets-key/rotate"))[0] == 403
    assert await admin("POST", "/v1/secrets-key/rotate") == (200, {"secrets": 3})
    after = {secret.name: secret.sealed for secret in (await controller.store.load()).secrets}
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())
    assert (await ada("POST", "/v1/runs", configuration=with_secret("S2")))[0] == 201


async def test_a_removed_users_secrets_are_not_given_to_a_new_user_of_that_name(
    ada: Person, admin: Person
) -> None:
    _, bob = await admin("POST", "/v1/users", name="bob")
    as_bob = Person(ada.client, bob["token"]["token"])
    await as_bob("PUT", "/v1/secrets/TOKEN", value=CANARY)
    assert (await admin("DELETE", "/v1/users/bob"))[0] == 200
    _, bob = await admin("POST", "/v1/users", name="bob")
    as_bob = Person(ada.client, bob["token"]["token"])
    assert (await as_bob("GET", "/v1/secrets"))[1]["secrets"] == []


def with_secret(name: str) -> dict[str, Any]:
    return {**HELLO, "env": {"TOKEN": f"${{{{ secrets.{name} }}}}"}}
