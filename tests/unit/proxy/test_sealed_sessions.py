"""A browser's session with a service holds at each controller, for what is known there."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from common.proxy.browsers.sessions import SESSION_SECONDS
from common.proxy.view import Service
from common.tokens import BROWSER_PREFIX, digest
from controller.proxy.sealed import SealedSessions
from controller.service.accounts.users import Credential
from controller.store.accounts import EndedLogin, ServiceKey, StoredToken, User
from controller.store.base import Changes
from tests.doubles.clock import ManualClock
from tests.support.replicas import an_app, echo
from tests.unit.proxy.bed import KEY, Bed, a_bed
from tests.unit.proxy.test_browser_login import LOGIN, OWN, begin, code_for, enter, session_of

SECRET = b"of the installation"
SERVICE = Service(run_id="run-api", name="api", owner="ada")
TOKEN = StoredToken(id="ada", user="ada", digest="d", created_at=0.0)


def book(secret: bytes = SECRET) -> SealedSessions:
    return SealedSessions(secret, ManualClock())


async def opened(bed: Bed) -> str:
    """Open the service for Ada, who has logged in; return the browser's cookie."""
    way = await begin(bed)
    return session_of(await enter(bed, code_for(bed, way), way.cookie))


async def status(bed: Bed, cookie: str, **headers: str) -> int:
    sent = {**OWN, "Cookie": cookie, **headers}
    async with bed.client.get("/", headers=sent) as answer:
        return answer.status


async def test_a_session_holds_at_another_controller_that_has_the_secret() -> None:
    async with (
        a_bed(sealed=book()) as one,
        a_bed(sealed=book()) as two,
        a_bed(sealed=book(b"another")) as stranger,
        an_app(echo) as port,
    ):
        for bed in (one, two, stranger):
            bed.serve(port, auth=True)
        cookie = await opened(one)
        assert [await status(bed, cookie) for bed in (one, two, stranger)] == [200, 200, 401]
        # A page of a sibling host makes the browser send it, too.
        assert await status(two, cookie, **{"Sec-Fetch-Site": "same-site"}) == 401


@pytest.mark.parametrize("how", ["logged out", "token revoked", "user removed"])
async def test_it_ends_with_the_login_at_each_controller(how: str) -> None:
    async with a_bed(sealed=book()) as one, a_bed(sealed=book()) as two, an_app(echo) as port:
        for bed in (one, two):
            bed.serve(port, auth=True)
        cookie = await opened(one)
        assert await status(two, cookie) == 200
        ended = (EndedLogin(id="login-of-ada", until=1e12),)
        role = two.gate.users["ada"].role
        changes = {
            "logged out": Changes(
                users=(User(name="ada", role=role, created_at=0.0, ended_logins=ended),)
            ),
            "token revoked": Changes(removed_tokens=("ada",)),
            "user removed": Changes(removed_users=("ada",)),
        }
        two.gate.apply(changes[how])
        assert await status(two, cookie) == 401


async def test_a_session_by_a_key_ends_with_the_key() -> None:
    async with a_bed(sealed=book()) as one, a_bed(sealed=book()) as two, an_app(echo) as port:
        for bed in (one, two):
            bed.serve(port, auth=True)
        answer = await one.client.post(LOGIN, data={"key": KEY}, headers=OWN, allow_redirects=False)
        cookie = session_of(answer)
        assert KEY not in cookie
        assert await status(two, cookie) == 200
        two.gate.apply(Changes(removed_service_keys=("k",)))
        assert await status(two, cookie) == 401


async def test_what_is_in_a_cookie_is_no_token() -> None:
    async with a_bed(sealed=book()) as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        value = (await opened(bed)).partition("=")[2]
        for secret in (value, f"{BROWSER_PREFIX}{value}"):
            headers = {**OWN, "Authorization": f"Bearer {secret}"}
            async with bed.client.get("/", headers=headers) as answer:
                assert answer.status == 401


async def test_what_is_in_a_cookie_opens_no_model() -> None:
    async with a_bed(sealed=book()) as bed, an_app(echo) as port:
        bed.serve(port, auth=True, model="llama")
        headers = {
            "Authorization": f"Bearer {BROWSER_PREFIX}{(await opened(bed)).partition('=')[2]}"
        }
        body = {"model": "llama"}
        async with bed.client.post("/models/v1/completions", json=body, headers=headers) as answer:
            assert answer.status == 401
        async with bed.client.get("/models/v1/models", headers=headers) as answer:
            assert answer.status == 401


def test_a_session_is_for_one_run_and_for_twelve_hours() -> None:
    clock = ManualClock()
    sealed = SealedSessions(SECRET, clock)
    value = sealed.open(SERVICE, "flb_x", Credential(token=TOKEN, login="l"))
    found = sealed.granted(f"{BROWSER_PREFIX}{value}", "run-api")
    assert found is not None
    assert (found.token_id, found.login) == ("ada", "l")
    assert sealed.secret_of(replace(SERVICE, run_id="another"), value) is None
    assert sealed.granted(f"{BROWSER_PREFIX}{value}", "another") is None
    clock.time += SESSION_SECONDS - 1
    assert sealed.secret_of(SERVICE, value) is not None
    clock.time += 1
    assert sealed.secret_of(SERVICE, value) is None


def test_a_key_is_hidden_and_grants_no_login() -> None:
    sealed = book()
    stored = ServiceKey(id="k", service="api", user="ada", digest=digest(KEY), created_at=0.0)
    value = sealed.open(SERVICE, KEY, stored)
    assert sealed.secret_of(SERVICE, value) == KEY
    assert sealed.granted(f"{BROWSER_PREFIX}{value}", "run-api") is None
    assert KEY not in value + repr(sealed.opened(value, "run-api"))


@pytest.mark.parametrize("value", ["", "x", "ä", "gAAAAA" * 10, "a" * 100_000, "a.b"])
def test_what_is_no_session_opens_nothing(value: str) -> None:
    assert book().secret_of(SERVICE, value) is None


@pytest.mark.parametrize("run_id", ["r", "rr", "r" * 16, "r" * 32])
async def test_a_session_begins_no_other_one(run_id: str) -> None:
    """A cookie could else be renewed without an end, past that of its login. A seal is
    base64, whose decoders pass over much, depending on its length."""
    async with a_bed(sealed=book()) as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        service = replace(SERVICE, run_id="run-api")
        credential = Credential(token=replace(TOKEN, id="ada"), login=run_id)
        value = book().open(service, "", credential)
        assert await status(bed, f"fairlead-service={value}") == 200
        way = await begin(bed)
        assert (await enter(bed, value, way.cookie)).status == 401
        for more in (f"{value}.{'0' * 64}", f"{value[:9]}.{value[9:]}", f"{value}\n", f'"{value}"'):
            assert book().opened(more, "run-api") is None


async def test_a_code_opens_one_session() -> None:
    """A code would else open sessions for as long as one may hold: the last one for twice that."""
    async with a_bed(sealed=book()) as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        way = await begin(bed)
        code = code_for(bed, way)
        assert (await enter(bed, code, way.cookie)).status == 303
        assert (await enter(bed, code, way.cookie)).status == 401
