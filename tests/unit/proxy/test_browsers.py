"""A browser logs in to a service with a key, and a cookie stands for it from then on."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import WSMsgType, web

from common.proxy.browsers.site import Site
from controller.store.base import Changes
from tests.support.replicas import an_app, echo
from tests.unit.proxy.bed import KEY, TOKENS, Bed, a_bed

OWN = {"Host": "api.localhost", "Sec-Fetch-Site": "same-origin"}
HTML = {"Accept": "text/html,*/*", **OWN}
LOGIN = "/.fairlead/login"


async def log_in(bed: Bed, key: str, **headers: str) -> aiohttp.ClientResponse:
    sent = {**OWN, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return await bed.client.post(LOGIN, data={"key": key}, headers=sent, allow_redirects=False)


async def cookie(bed: Bed) -> str:
    answer = await log_in(bed, KEY)
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    return answer.headers["Set-Cookie"].partition(";")[0]


async def test_a_browser_gets_a_form_and_a_program_an_error() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        async with bed.client.get("/x", headers=HTML) as answer:
            assert (answer.status, answer.content_type) == (401, "text/html")
            assert f'action="{LOGIN}"' in await answer.text()
        async with bed.client.get("/x", headers=OWN) as answer:
            assert (answer.status, answer.content_type) == (401, "application/json")


async def test_a_key_opens_the_service_and_the_replica_sees_only_its_own_cookies() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        answer = await log_in(bed, KEY)
        attributes = answer.headers["Set-Cookie"].split("; ")[1:]
        assert {"HttpOnly", "Path=/", "SameSite=Lax"} <= set(attributes)
        ours = await cookie(bed)
        for sent, seen in ((ours, None), (f"a=b; {ours}; c=d", "a=b; c=d")):
            async with bed.client.get("/", headers={"Cookie": sent, **OWN}) as answer:
                assert answer.status == 200
                assert dict((await answer.json())["headers"]).get("cookie") == seen


@pytest.mark.parametrize("user", ["ada", "root"])
async def test_no_token_of_a_user_is_taken_by_the_form(user: str) -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        answer = await log_in(bed, TOKENS[user])
        assert (answer.status, "Set-Cookie" in answer.headers) == (401, False)
        assert "Never type the token of a user here" in await answer.text()


@pytest.mark.parametrize(
    "told",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "http://evil.localhost"},
        {"Origin": "null"},
    ],
)
async def test_the_form_of_another_page_logs_nobody_in(told: dict[str, str]) -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        answer = await log_in(bed, KEY, **told)
        assert (answer.status, "Set-Cookie" in answer.headers) == (403, False)


async def test_a_wrong_key_gets_the_form_again_and_many_tries_must_wait() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        statuses = [(await log_in(bed, key)).status for key in [TOKENS["bob"], *["flk_x"] * 10]]
    assert statuses == [401] * 10 + [429]


async def test_a_cookie_opens_no_other_service_and_ends_with_its_key() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        bed.serve(port, auth=True, name="other", run_id="run-other")
        headers = {"Cookie": await cookie(bed)}
        other = {**headers, "Host": "other.localhost"}
        for path, sent in (
            ("/", other),
            ("/services/api/", headers),
            ("/services/other/", headers),
        ):
            async with bed.client.get(path, headers=sent) as answer:
                assert answer.status == 401
        async with bed.client.get("/", headers={**headers, **OWN}) as answer:
            assert answer.status == 200
        bed.gate.apply(Changes(removed_service_keys=("k",)))
        async with bed.client.get("/", headers={**headers, **OWN}) as answer:
            assert answer.status == 401


async def test_a_page_of_another_site_cannot_use_the_cookie() -> None:
    async def talk(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        await ws.send_str("hi")
        return ws

    async with a_bed() as bed, an_app(talk) as port:
        bed.serve(port, auth=True)
        headers = {"Cookie": await cookie(bed), "Host": "api.localhost"}
        own = "http://api.localhost"
        async with bed.client.ws_connect("/", headers=headers, origin=own) as ws:
            assert (await ws.receive()).type is WSMsgType.TEXT
        for other in ("http://evil", "http://other.localhost", "null"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await bed.client.ws_connect("/", headers=headers, origin=other)
            assert refused.value.status == 401


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize(
    ("mode", "dest", "method", "status"),
    [
        ("no-cors", "image", "GET", 401),
        ("no-cors", "script", "GET", 401),
        ("no-cors", "empty", "POST", 401),
        ("cors", "empty", "GET", 401),
        ("navigate", "iframe", "GET", 401),
        ("navigate", "object", "GET", 401),
        ("navigate", "document", "POST", 401),
        ("navigate", "document", "GET", 200),
    ],
)
async def test_only_a_navigation_brings_the_cookie_from_another_page(
    site: str, mode: str, dest: str, method: str, status: int
) -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        told = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
        headers = {"Cookie": await cookie(bed), **OWN, **told}
        async with bed.client.request(method, "/", headers=headers) as answer:
            assert answer.status == status


@pytest.mark.parametrize(
    ("host", "status"), [("api.localhost", 401), ("api.127.0.0.1.example", 200)]
)
async def test_a_browser_that_tells_nothing_of_the_asking_page_is_too_old(
    host: str, status: int
) -> None:
    """Over a plain connection to another machine, which an operator has to insist on, no browser
    tells it."""
    domain = host.partition(".")[2]
    insists = Site(allows_plain_http=True)
    given = None if domain == "localhost" else domain
    async with a_bed(domain=given, site=insists) as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        headers = {"Host": host, "Origin": f"http://{host}"}
        form = {"key": KEY}
        posted = await bed.client.post(LOGIN, data=form, headers=headers, allow_redirects=False)
        ours = posted.headers["Set-Cookie"].partition(";")[0]
        async with bed.client.get("/", headers={"Cookie": ours, "Host": host}) as answer:
            assert answer.status == status


async def test_of_two_session_cookies_none_counts() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        ours = await cookie(bed)
        for both in (f"{ours}; fairlead-service=planted", f"fairlead-service=x; {ours}"):
            async with bed.client.get("/", headers={"Cookie": both, **OWN}) as answer:
                assert answer.status == 401


async def test_over_tls_no_other_host_can_set_the_cookie() -> None:
    async with a_bed(domain="svc.example") as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        behind_tls = {**OWN, "X-Forwarded-Proto": "https", "Host": "api.svc.example"}
        answer = await bed.client.post(
            LOGIN, data={"key": KEY}, headers=behind_tls, allow_redirects=False
        )
        name, _, rest = answer.headers["Set-Cookie"].partition("=")
        assert name == "__Host-fairlead-service"
        assert {"Secure", "Path=/", "HttpOnly"} <= set(rest.split("; "))
        value = rest.partition(";")[0]
        for sent, status in ((name, 200), ("fairlead-service", 401)):
            headers = {**behind_tls, "Cookie": f"{sent}={value}"}
            async with bed.client.get("/", headers=headers) as seen:
                assert seen.status == status
