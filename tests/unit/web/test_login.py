"""Who gets which page, and what a browser can be made to send."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aiohttp import ClientPayloadError
from aiohttp.test_utils import TestClient, TestServer

from common.proxy.browsers.site import Site
from common.refusals import Unauthenticated
from controller.api.app import make_app
from controller.clock import SystemClock
from controller.service.accounts.users import Gate
from controller.web.app import Dashboard, session_key
from controller.web.sessions import Sessions
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN, Controller
from tests.unit.web.conftest import Browser, submit

COOKIE = "fairlead-dashboard"


async def test_a_page_asks_a_stranger_to_log_in_and_leads_back(stranger: Browser) -> None:
    answer = await stranger.open("/dashboard/runs?user=ada")

    assert answer.status == 303
    assert answer.headers["Location"] == "/dashboard/login?next=%2Fdashboard%2Fruns%3Fuser%3Dada"


@pytest.mark.parametrize(
    "sent", [{"Origin": "http://[bad"}, {"X-Fairlead-Page": "\udcff"}], ids=["origin", "page"]
)
async def test_malformed_headers_are_refused_and_no_fault(
    admin: Browser, sent: dict[str, str]
) -> None:
    async with admin.client.post("/dashboard/logout", headers=sent) as answer:
        assert answer.status == 403


async def test_a_token_opens_the_pages_and_is_in_no_cookie(stranger: Browser) -> None:
    answer = await stranger.log_in(ADMIN_TOKEN)

    cookie = answer.headers["Set-Cookie"]
    assert answer.status == 303
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path=/dashboard" in cookie
    assert "Max-Age" in cookie
    assert ADMIN_TOKEN not in cookie
    assert (await stranger.open("/dashboard/runs")).status == 200


async def test_the_cookie_is_for_encrypted_connections_alone_behind_tls(stranger: Browser) -> None:
    secure = {"X-Forwarded-Proto": "https"}
    page = await stranger.client.get("/dashboard/login", headers=secure)
    asked = page.headers["Set-Cookie"].partition(";")[0]
    form = {
        "token": ADMIN_TOKEN,
        "asked": (await page.text()).split('name="asked" value="')[1][:64],
    }

    answer = await stranger.client.post(
        "/dashboard/login", data=form, headers={**secure, "Cookie": asked}, allow_redirects=False
    )

    assert asked.startswith("__Host-fairlead-asked=")
    assert answer.headers["Set-Cookie"].startswith("__Host-fairlead-dashboard=")
    assert re.search("(?=.*; Path=/;).*; Secure", answer.headers["Set-Cookie"])


async def test_an_unknown_token_is_refused_on_the_form(stranger: Browser) -> None:
    answer = await stranger.log_in("fl-wrong")

    assert answer.status == 401
    assert "not known to this controller" in await answer.text()
    assert "fairlead-dashboard" not in answer.headers["Set-Cookie"]


async def test_an_address_has_ten_tries_to_log_in(stranger: Browser) -> None:
    statuses = [(await stranger.log_in("fl-wrong")).status for _ in range(11)]

    assert statuses == [401] * 10 + [429]


async def test_a_forged_cookie_opens_nothing(stranger: Browser) -> None:
    stranger.client.session.cookie_jar.update_cookies(
        {COOKIE: "t1.ffffffff.00.0000"}, stranger.client.make_url("/dashboard/")
    )

    assert (await stranger.open("/dashboard/runs")).status == 303


async def test_a_revoked_token_ends_the_login(admin: Browser, controller: Controller) -> None:
    caller = controller.service.accounts.gate.users["admin"]
    await controller.service.accounts.users.revoke("t1", by=caller)

    assert (await admin.open("/dashboard/runs")).status == 303


async def test_a_login_outlives_a_restart_of_the_controller(
    admin: Browser, controller: Controller
) -> None:
    again = Dashboard(controller.service, session_key(b"secret of the tests"), lambda: 0.0)
    async with TestClient(
        TestServer(make_app(controller.service, mounts=(again.mount,)))
    ) as client:
        browser = Browser(client)
        browser.page_token = admin.page_token
        client.session.cookie_jar.update_cookies(
            {COOKIE: cookie_of(admin)}, client.make_url("/dashboard/")
        )
        rows = await browser.fragment("/dashboard/runs", "rows")

    assert 'id="rows"' in rows


def cookie_of(browser: Browser) -> str:
    address = browser.client.make_url("/dashboard/")
    return browser.client.session.cookie_jar.filter_cookies(address)[COOKIE].value


async def test_a_user_who_logged_out_must_log_in_again(
    admin: Browser, controller: Controller
) -> None:
    before = cookie_of(admin)
    answer = await admin.act("/dashboard/logout")
    admin.client.session.cookie_jar.update_cookies(
        {COOKIE: before}, admin.client.make_url("/dashboard/")
    )

    assert answer.headers["HX-Redirect"] == "/dashboard/login"
    assert (await admin.open("/dashboard/runs")).status == 303
    stored = {user.name: user for user in (await controller.store.load()).users}
    assert [login.id for login in stored["admin"].ended_logins] == [before.split(".")[2]]


async def test_a_login_that_ended_stays_ended_after_a_restart(
    admin: Browser, controller: Controller
) -> None:
    before = cookie_of(admin)
    await admin.act("/dashboard/logout")
    loaded = await controller.store.load()
    gate = Gate(loaded.users, controller.service.accounts.gate.tokens, SystemClock())

    with pytest.raises(Unauthenticated, match="you logged out"):
        Sessions(
            session_key(b"secret of the tests"), gate, SystemClock(), Site().client
        ).credential_of(before)


async def test_a_link_of_the_command_logs_in_once(stranger: Browser) -> None:
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    made = await (await stranger.client.post("/v1/me/login-link", headers=headers)).json()

    path, _, code = made["path"].partition("#")
    form = {**await stranger.form(path), "code": code}
    asked = [await stranger.client.post(f"{path}/who", data=form) for _ in range(2)]
    first, second = [
        await stranger.client.post(path, data=form, allow_redirects=False) for _ in range(2)
    ]

    assert [await one.json() for one in asked] == [{"user": "ada", "role": "user"}] * 2
    assert (first.status, first.headers["Location"]) == (303, "/dashboard/runs")
    assert second.status == 401
    assert "used already" in await second.text()
    assert "ada (user)" in await (await stranger.open("/dashboard/runs")).text()


@pytest.mark.parametrize("path", ["/dashboard/login", "/dashboard/enter", "/dashboard/enter/who"])
async def test_a_login_that_this_browser_did_not_ask_for_is_refused(
    stranger: Browser, admin: Browser, path: str
) -> None:
    """A page of somebody else logs its reader in as somebody else."""
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    made = await (await stranger.client.post("/v1/me/login-link", headers=headers)).json()
    form = {"token": USER_TOKEN, "code": made["path"].partition("#")[2]}
    foreign = await admin.form("/dashboard/login")
    own = await stranger.form("/dashboard/login")

    for sent, headers in (
        (form, {}),
        ({**form, **foreign}, {}),
        ({**form, **own}, {"Sec-Fetch-Site": "same-site"}),
        ({**form, **own}, {"Origin": "https://evil.example"}),
    ):
        answer = await stranger.client.post(path, data=sent, headers=headers, allow_redirects=False)
        assert answer.status == 403
    assert (await stranger.open("/dashboard/runs")).status == 303


async def test_two_logins_in_one_request_are_refused(site: TestServer, admin: Browser) -> None:
    """A sibling host planted one: which comes first is not known."""
    own = cookie_of(admin)
    headers = {"Cookie": f"{COOKIE}={own}; {COOKIE}={own}", "Accept": "text/html"}
    async with TestClient(site) as client:
        page = await client.get("/dashboard/runs", headers=headers, allow_redirects=False)
        asked = await client.get("/dashboard/api/v1/me", headers=headers)
        told = await asked.json()

    assert page.status == 303
    assert (asked.status, told["error"]["code"]) == (401, "two_logins")


async def test_each_document_has_a_token_of_its_own_which_no_address_takes(
    admin: Browser,
) -> None:
    first, own = admin.page_token, cookie_of(admin)
    text = await (await admin.open("/dashboard/runs")).text()
    second = text.split('name="fairlead-page" content="')[1].partition('"')[0]

    assert first != second
    for token, status in ((first, 200), (second, 200), (f"{second[:16]}{first[16:]}", 403)):
        headers = {"X-Fairlead-Page": token}
        assert (await admin.client.get("/dashboard/session", headers=headers)).ok == (status == 200)
    answer = await admin.client.get("/dashboard/stream", params={"page": first})
    assert answer.status == 403
    assert own not in text


async def test_logging_out_ends_the_streams_of_this_login_alone(
    site: TestServer, admin: Browser
) -> None:
    run = await submit(admin)
    async with TestClient(site) as client:
        other = Browser(client)
        await other.log_in(ADMIN_TOKEN)
        watch = f"/dashboard/api/v1/runs/{run['id']}/watch"
        streams = [
            await one.client.get(watch, headers={"X-Fairlead-Page": one.page_token})
            for one in (admin, other)
        ]
        live = await admin.stream("any")
        await live.content.readuntil(b"\n\n")
        for stream in streams:
            await stream.content.readline()

        await admin.act("/dashboard/logout")

        for ended in (streams[0], live):
            with pytest.raises(ClientPayloadError):  # they end in the middle
                await ended.read()
        assert not streams[1].content.at_eof()
        assert (await other.open("/dashboard/runs")).status == 200


@pytest.mark.parametrize("path", ["/dashboard/login", "/dashboard/enter", "/dashboard/runs"])
async def test_no_browser_logs_in_where_others_can_read_it(stranger: Browser, path: str) -> None:
    answer = await stranger.open(path, Host="fairlead.example:8700")

    assert answer.status == 403
    assert "ssh -L" in await answer.text()
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize(
    "settings",
    [{"allows_plain_http": True}, {"public_url": "https://fairlead.example:8700"}],
    ids=["the operator insists", "a reverse proxy ends TLS"],
)
async def test_the_operator_can_say_that_it_is_safe(
    controller: Controller, settings: dict[str, Any]
) -> None:
    dashboard = Dashboard(controller.service, b"", lambda: 0.0, site=Site(**settings))
    server = TestServer(make_app(controller.service, mounts=(dashboard.mount,)))
    async with TestClient(server) as client:
        answer = await Browser(client).open("/dashboard/login", Host="fairlead.example:8700")

    assert answer.status == 200
    is_secure = "public_url" in settings
    assert answer.headers["Set-Cookie"].startswith("__Host-") is is_secure


async def test_answers_of_the_api_are_no_documents_and_not_kept(admin: Browser) -> None:
    headers = {"X-Fairlead-Page": admin.page_token}
    for path in ("/dashboard/api/v1/runs", "/v1/health", "/metrics"):
        answer = await admin.client.get(path, headers=headers)
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in answer.headers["Content-Security-Policy"]


async def test_a_link_from_another_site_makes_the_page_ask_again(stranger: Browser) -> None:
    answer = await stranger.open("/dashboard/runs", **{"Sec-Fetch-Site": "cross-site"})

    assert answer.status == 200
    assert 'http-equiv="refresh"' in await answer.text()


@pytest.mark.parametrize(
    "there",
    [
        *("https://evil.example/", "//evil.example", "/v1/health"),
        *("/dashboard/../services/evil/", "/dashboard/%2e%2e/services/evil/"),
    ],
)
async def test_a_login_leads_to_the_dashboard_alone(stranger: Browser, there: str) -> None:
    answer = await stranger.client.post(
        "/dashboard/login",
        params={"next": there},
        data={**await stranger.form("/dashboard/login"), "token": ADMIN_TOKEN},
        allow_redirects=False,
    )

    assert answer.headers["Location"] == "/dashboard/runs"


async def test_an_action_needs_the_token_of_a_page(admin: Browser) -> None:
    run = await submit(admin)
    admin.page_token = "guessed"

    answer = await admin.act(f"/dashboard/runs/{run['id']}/actions/abort")

    assert answer.status == 403
    assert (await answer.json())["error"]["code"] == "not_from_page"


async def test_an_action_that_another_site_sends_is_refused(admin: Browser) -> None:
    run = await submit(admin)
    headers = {"X-Fairlead-Page": admin.page_token, "Origin": "https://evil.example"}

    answer = await admin.client.post(f"/dashboard/runs/{run['id']}/actions/abort", headers=headers)

    assert answer.status == 403
    assert (await answer.json())["error"]["code"] == "cross_site"


async def test_a_script_of_a_service_on_this_origin_gets_no_page(admin: Browser) -> None:
    """The cookie goes along with it, but a page's token is only in a document that was opened."""
    answer = await admin.open(
        "/dashboard/runs", **{"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "empty"}
    )

    assert answer.status == 403
    assert "fairlead-page" not in await answer.text()


async def test_the_api_answers_a_page_and_nothing_else(admin: Browser) -> None:
    run = await submit(admin)
    path = f"/dashboard/api/v1/runs/{run['id']}"

    from_page = await admin.client.get(path, headers={"X-Fairlead-Page": admin.page_token})
    from_elsewhere = await admin.client.get(path)

    assert (await from_page.json())["name"] == run["name"]
    assert from_elsewhere.status == 403


async def test_every_page_forbids_scripts_that_are_not_files_of_ours(admin: Browser) -> None:
    policy = (await admin.open("/dashboard/runs")).headers["Content-Security-Policy"]

    assert "script-src 'self';" in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


async def test_no_template_has_scripts_or_styles_in_it(admin: Browser) -> None:
    run = await submit(admin)
    for path in ("/dashboard/runs", f"/dashboard/runs/{run['id']}"):
        text = await (await admin.open(path)).text()
        assert "<style" not in text
        assert " style=" not in text
        assert " onclick=" not in text
        assert "<script>" not in text
