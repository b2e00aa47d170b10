"""Who gets which page, and what a browser can be made to send."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import TestClient, TestServer

from controller.api.app import make_app
from controller.clock import SystemClock
from controller.service.errors import Unauthenticated
from controller.service.users import Gate
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
    stranger: Browser, sent: dict[str, str]
) -> None:
    await stranger.log_in(ADMIN_TOKEN)
    async with stranger.client.post("/dashboard/logout", headers=sent) as answer:
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
    answer = await stranger.client.post(
        "/dashboard/login",
        data={"token": ADMIN_TOKEN},
        headers={"X-Forwarded-Proto": "https"},
        allow_redirects=False,
    )

    assert "Secure" in answer.headers["Set-Cookie"]


async def test_an_unknown_token_is_refused_on_the_form(stranger: Browser) -> None:
    answer = await stranger.log_in("fl-wrong")

    assert answer.status == 401
    assert "not known to this controller" in await answer.text()
    assert "Set-Cookie" not in answer.headers


async def test_an_address_has_ten_tries_to_log_in(stranger: Browser) -> None:
    statuses = [(await stranger.log_in("fl-wrong")).status for _ in range(11)]

    assert statuses == [401] * 10 + [429]


async def test_a_forged_cookie_opens_nothing(stranger: Browser) -> None:
    stranger.client.session.cookie_jar.update_cookies(
        {COOKIE: "t1.ffffffff.00.0000"}, stranger.client.make_url("/dashboard/")
    )

    assert (await stranger.open("/dashboard/runs")).status == 303


async def test_a_revoked_token_ends_the_login(admin: Browser, controller: Controller) -> None:
    caller = controller.service.gate.users["admin"]
    await controller.service.users.revoke("t1", by=caller)

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
    gate = Gate(loaded.users, controller.service.gate.tokens, SystemClock())

    with pytest.raises(Unauthenticated, match="you logged out"):
        Sessions(session_key(b"secret of the tests"), gate, SystemClock()).token_of(before)


async def test_a_link_of_the_command_logs_in_once(stranger: Browser) -> None:
    headers = {"Authorization": f"Bearer {USER_TOKEN}"}
    made = await (await stranger.client.post("/v1/me/login-link", headers=headers)).json()

    first = await stranger.open(made["path"])
    second = await stranger.open(made["path"])

    assert (first.status, first.headers["Location"]) == (303, "/dashboard/runs")
    assert second.status == 401
    assert "used already" in await second.text()
    assert "ada (user)" in await (await stranger.open("/dashboard/runs")).text()


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
        data={"token": ADMIN_TOKEN},
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
