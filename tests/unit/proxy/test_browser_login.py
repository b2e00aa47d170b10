"""A user comes into a service by the dashboard: one browser gets a code, because it asked."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest

from common.proxy.browsers.site import Site
from common.refusals import Unauthenticated
from common.tokens import browser_secret, digest
from controller.service.accounts.browser_grants import MAX_OF_USER
from controller.service.accounts.login_links import LoginLinks
from controller.store.accounts import EndedLogin, User
from controller.store.base import Changes
from tests.doubles.clock import ManualClock
from tests.support.replicas import an_app, echo
from tests.unit.proxy.bed import Bed, a_bed, gate, prove

HOST = "api.localhost"
OWN = {"Host": HOST, "Sec-Fetch-Site": "same-origin"}
FROM_DASHBOARD = {"Host": HOST, "Sec-Fetch-Site": "same-site", "Accept": "text/html"}
LOGIN, ENTER = "/.fairlead/login", "/.fairlead/enter"


class Way:
    """A browser that was sent to the dashboard for a code."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.status = answer.status
        self.location = urlsplit(answer.headers["Location"])
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
        query = parse_qs(self.location.query)
        self.state, self.next = query["state"][0], query["next"][0]


async def begin(bed: Bed, query: str = "", **headers: str) -> Way:
    sent = {**FROM_DASHBOARD, **headers}
    return Way(await bed.client.get(f"{LOGIN}{query}", headers=sent, allow_redirects=False))


async def enter(bed: Bed, code: str, cookie: str, there: str = "/") -> aiohttp.ClientResponse:
    return await bed.client.post(
        ENTER,
        data={"code": code, "next": there},
        headers={**OWN, "Cookie": cookie},
        allow_redirects=False,
    )


def code_for(bed: Bed, way: Way, user: str = "ada", run_id: str = "run-api") -> str:
    token = bed.gate.token_by_id(user)
    return bed.gate.grants.make(run_id, token, f"login-of-{user}", way.state)


def session_of(answer: aiohttp.ClientResponse) -> str:
    return answer.headers["Set-Cookie"].partition(";")[0]


async def test_a_code_of_the_dashboard_opens_the_service_for_the_browser_that_asked() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        way = await begin(bed, "?next=/lab%3Fx%3D1")
        assert way.location.netloc == "localhost"
        assert (way.location.path, way.next) == ("/dashboard/open/api", "/lab?x=1")
        answer = await enter(bed, code_for(bed, way), way.cookie, way.next)
        assert (answer.status, answer.headers["Location"]) == (303, "/lab?x=1")
        async with bed.client.get("/", headers={**OWN, "Cookie": session_of(answer)}) as seen:
            assert seen.status == 200
            assert "cookie" not in dict((await seen.json())["headers"])


async def test_a_code_is_nothing_without_the_cookie_of_the_browser_that_asked() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        mine, theirs = await begin(bed), await begin(bed)
        code = code_for(bed, mine)
        for cookie in ("", theirs.cookie, f"{mine.cookie}; {theirs.cookie}"):
            answer = await enter(bed, code, cookie)
            assert (answer.status, "Set-Cookie" in answer.headers) == (401, False)
        assert (await enter(bed, code, mine.cookie)).status == 303


async def test_a_code_for_one_service_opens_no_other() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        way = await begin(bed)
        code = code_for(bed, way, run_id="run-other")
        assert (await enter(bed, code, way.cookie)).status == 401


async def test_the_session_ends_with_the_login_at_the_dashboard() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        way = await begin(bed)
        headers = {**OWN, "Cookie": session_of(await enter(bed, code_for(bed, way), way.cookie))}
        assert (await bed.client.get("/", headers=headers)).status == 200
        ended = (EndedLogin(id="login-of-ada", until=1e12),)
        ada = User(name="ada", role=bed.gate.users["ada"].role, created_at=0.0, ended_logins=ended)
        bed.gate.apply(Changes(users=(ada,)))
        assert (await bed.client.get("/", headers=headers)).status == 401


async def test_what_stands_behind_a_cookie_is_no_token() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        way = await begin(bed)
        code = code_for(bed, way)
        known = way.cookie.partition("=")[2]
        secret = browser_secret(code, digest(known))
        headers = {**OWN, "Authorization": f"Bearer {secret}"}
        async with bed.client.get("/", headers=headers) as answer:
            assert answer.status == 401


@pytest.mark.parametrize(
    "there", ["//evil.example/", "https://evil.example", "/\\evil", "/a b", ""]
)
async def test_a_login_leads_to_the_service_alone(there: str) -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        way = await begin(bed)
        answer = await enter(bed, code_for(bed, way), way.cookie, there)
        assert answer.headers["Location"] == "/"


async def test_only_an_origin_that_the_dashboard_vouches_for_gets_the_browser() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        origin = "http://127.0.0.1:8700"
        proof = prove("api", origin)
        way = await begin(bed, f"?from={origin}&proof={proof}")
        assert way.location.netloc == "127.0.0.1:8700"
        for wrong in (f"?from=http://evil&proof={proof}", f"?from={origin}&proof=", "?from=//evil"):
            assert (await begin(bed, wrong)).location.netloc == "localhost"


async def test_where_no_dashboard_is_known_the_page_asks_for_a_key() -> None:
    async with a_bed(domain="svc.example") as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        tls = {**FROM_DASHBOARD, "Host": "api.svc.example", "X-Forwarded-Proto": "https"}
        async with bed.client.get("/", headers=tls) as answer:
            text = await answer.text()
            assert answer.status == 401
            assert 'name="key"' in text
            assert "Log in with Fairlead" not in text


async def test_behind_tls_the_public_url_is_the_dashboard_and_the_cookie_the_hosts_alone() -> None:
    site = Site(public_url="https://fairlead.example")
    async with a_bed(domain="svc.example", site=site) as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        tls = {"Host": "api.svc.example", "X-Forwarded-Proto": "https"}
        way = await begin(bed, **tls)
        assert way.location.geturl().startswith("https://fairlead.example/dashboard/open/api?")
        assert way.cookie.startswith("__Host-fairlead-opening=")


async def test_over_a_plain_connection_from_elsewhere_nobody_logs_in() -> None:
    async with a_bed(domain="svc.example") as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        plain = {**FROM_DASHBOARD, "Host": "api.svc.example"}
        for path in ("/", LOGIN, ENTER):
            async with bed.client.get(path, headers=plain) as answer:
                text = await answer.text()
                assert "it is not encrypted" in text
                assert "<form" not in text


@pytest.mark.parametrize("name", ["api", "nothing"])
async def test_the_page_tells_no_stranger_whether_there_is_a_service(name: str) -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True, owner="bob")
        headers = {**FROM_DASHBOARD, "Host": f"{name}.localhost"}
        async with bed.client.get("/", headers=headers) as answer:
            page = (answer.status, (await answer.text()).replace(name, "NAME"))
        way = await begin(bed, Host=f"{name}.localhost")
        answer = await bed.client.post(
            ENTER,
            data={"code": "x", "next": "/"},
            headers={**headers, "Sec-Fetch-Site": "same-origin", "Cookie": way.cookie},
        )
        assert page[0] == answer.status == 401
        assert "there is no" not in page[1]


async def test_a_gateway_asks_the_controllers_dashboard_alone() -> None:
    site = Site(public_url="https://fairlead.example", is_behind_proxy=True)
    async with a_bed(site=site, is_gateway=True) as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        way = await begin(bed)
        assert way.location.netloc == "fairlead.example"


def test_whoever_asks_for_codes_without_end_loses_own_ones_and_takes_no_others() -> None:
    a_gate = gate()
    ada, bob = a_gate.token_by_id("ada"), a_gate.token_by_id("bob")
    others = a_gate.grants.make("run-api", ada, None, "state")
    codes = [a_gate.grants.make("run-api", bob, None, "state") for _ in range(MAX_OF_USER + 1)]

    def holds(code: str) -> bool:
        return a_gate.grants.use(digest(browser_secret(code, "state")), "run-api") is not None

    assert [holds(code) for code in (others, codes[0], codes[1], codes[-1])] == [
        *(True, False, True, True)
    ]


def test_whoever_asks_for_links_without_end_loses_own_ones_and_takes_no_others() -> None:
    a_gate = gate()
    ada, bob = a_gate.token_by_id("ada"), a_gate.token_by_id("bob")
    links = LoginLinks(a_gate, ManualClock())
    others = links.make(ada).code
    first, *_, last = [links.make(bob).code for _ in range(MAX_OF_USER + 1)]
    assert (links.take(others), links.take(last)) == (ada, bob)
    with pytest.raises(Unauthenticated, match="used already, or has expired"):
        links.take(first)
