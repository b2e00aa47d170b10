"""Browsers log in to a service with a form, and a cookie stands for the token."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import WSMsgType, web

from controller.store.base import Changes
from tests.unit.proxy.bed import KEY, TOKENS, Bed, a_bed, an_app, echo

HTML = {"Accept": "text/html,*/*"}
LOGIN = "/services/api/.fairlead/login"


async def log_in(bed: Bed, token: str) -> aiohttp.ClientResponse:
    return await bed.client.post(LOGIN, data={"token": token}, allow_redirects=False)


async def cookie(bed: Bed, token: str = KEY) -> str:
    answer = await log_in(bed, token)
    assert (answer.status, answer.headers["Location"]) == (303, "/services/api/")
    return answer.headers["Set-Cookie"].partition(";")[0]


async def test_a_browser_gets_a_form_and_a_program_an_error() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        async with bed.client.get("/services/api/x", headers=HTML) as answer:
            assert (answer.status, answer.content_type) == (401, "text/html")
            assert f'action="{LOGIN}"' in await answer.text()
        async with bed.client.get("/services/api/x") as answer:
            assert (answer.status, answer.content_type) == (401, "application/json")


@pytest.mark.parametrize("token", [KEY, TOKENS["ada"], TOKENS["root"]])
async def test_the_form_opens_the_service_and_the_replica_sees_only_its_own_cookies(
    token: str,
) -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        answer = await log_in(bed, token)
        attributes = answer.headers["Set-Cookie"].split("; ")[1:]
        assert {"HttpOnly", "Path=/services/api/", "SameSite=Lax"} <= set(attributes)
        ours = await cookie(bed, token)
        for sent, seen in ((ours, None), (f"a=b; {ours}; c=d", "a=b; c=d")):
            async with bed.client.get("/services/api/", headers={"Cookie": sent}) as answer:
                assert answer.status == 200
                assert dict((await answer.json())["headers"]).get("cookie") == seen


async def test_a_wrong_token_gets_the_form_again_and_many_tries_must_wait() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        statuses = [(await log_in(bed, token)).status for token in [TOKENS["bob"], *["fl_x"] * 10]]
    assert statuses == [401] * 10 + [429]


async def test_a_cookie_opens_no_other_service_and_ends_with_its_key() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        bed.serve(port, auth=True, name="other", run_id="run-other")
        headers = {"Cookie": await cookie(bed)}
        async with bed.client.get("/services/other/", headers=headers) as answer:
            assert answer.status == 401
        bed.gate.apply(Changes(removed_service_keys=("k",)))
        async with bed.client.get("/services/api/", headers=headers) as answer:
            assert answer.status == 401


async def test_a_page_of_another_site_cannot_use_the_cookie() -> None:
    async def talk(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        await ws.send_str("hi")
        return ws

    async with a_bed() as bed, an_app(talk) as port:
        bed.serve(port, auth=True)
        headers = {"Cookie": await cookie(bed)}
        own = f"http://127.0.0.1:{bed.client.port}"
        async with bed.client.ws_connect("/services/api/", headers=headers, origin=own) as ws:
            assert (await ws.receive()).type is WSMsgType.TEXT
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await bed.client.ws_connect("/services/api/", headers=headers, origin="http://evil")
    assert refused.value.status == 401
