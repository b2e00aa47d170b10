"""The proxy's changes to paths and headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.proxy import headers
from common.proxy.headers import (
    SANDBOX,
    Client,
    plain_path,
    response_headers,
    target_by_path,
)
from common.proxy.view import Service

HOSTS = frozenset({"fair.example"})


@pytest.mark.parametrize(
    ("raw", "service", "rest"),
    [
        ("/services/api", "api", "/"),
        ("/services/api/", "api", "/"),
        ("/services/api?x=/y", "api", "/?x=/y"),
        ("/services/api/a/b?c", "api", "/a/b?c"),
    ],
)
def test_a_path_names_its_service(raw: str, service: str, rest: str) -> None:
    target = target_by_path(raw)
    assert target is not None
    assert (target.service, target.rest) == (service, rest)


@pytest.mark.parametrize(
    "raw", ["/services/", "/services//x", "/services/../v1", "/services/a%2Fb/", "/services/A/"]
)
def test_other_paths_name_none(raw: str) -> None:
    assert target_by_path(raw) is None


@given(st.text(alphabet="/.%2eEfF5c\\ab?", max_size=40))
def test_a_plain_path_has_no_dots_and_is_its_own(rest: str) -> None:
    path = plain_path("/" + rest)
    if path is not None:
        assert not {"", ".", ".."} & set(path.split("/")[1:]) or path == "/"


def test_hop_by_hop_headers_and_those_that_connection_names_stay_here() -> None:
    sent = [
        ("Connection", "keep-alive, X-Mine"),
        ("X-Mine", "1"),
        ("Keep-Alive", "timeout=5"),
        ("TE", "trailers"),
        ("Transfer-Encoding", "chunked"),
        ("Proxy-Authorization", "x"),
        ("Cookie", "a=b"),
    ]
    assert headers.end_to_end(sent) == [("Cookie", "a=b")]


def test_a_strangers_forwarded_headers_are_replaced_and_a_local_proxys_are_kept() -> None:
    sent = [("X-Forwarded-For", "1.1.1.1"), ("X-Forwarded-Proto", "https"), ("Forwarded", "for=x")]
    far = headers.client_of("10.0.0.9", False, "h", sent)
    near = headers.client_of("::1", False, "h", sent)
    assert (far.address, far.forwarded_for, far.scheme) == ("10.0.0.9", "10.0.0.9", "http")
    assert (near.address, near.forwarded_for, near.scheme) == ("1.1.1.1", "1.1.1.1, ::1", "https")
    service = Service(run_id="r", name="api", owner="ada", headers=(("X-Own", "1"),))
    made = headers.request_headers(
        [*sent, ("x-own", "2")], client=far, service=service, prefix="", drop=frozenset()
    )
    assert made == [
        ("X-Forwarded-For", "10.0.0.9"),
        ("X-Forwarded-Proto", "http"),
        ("X-Forwarded-Host", "h"),
        ("X-Own", "1"),
    ]


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/login", "/services/api/login"),
        ("/services/api/login", "/services/api/login"),
        ("next", "next"),
        ("//other.example/x", "//other.example/x"),
        ("https://fair.example/x?y", "https://fair.example/services/api/x?y"),
        ("https://other.example/x", "https://other.example/x"),
    ],
)
def test_redirects_of_a_stripped_path_get_it_back(location: str, expected: str) -> None:
    assert below([("Location", location)]) == [("Location", expected)]
    assert below([("Location", location)], stripped="") == [("Location", location)]
    assert at_own_host([("Location", location)]) == [("Location", location)]


@pytest.mark.parametrize(
    ("cookie", "confined"),
    [
        ("a=b", "a=b"),
        ("a=b; Path=/; HttpOnly", "a=b; HttpOnly; Path=/services/api/"),
        ("a=b; path=/services/api/x", "a=b; Path=/services/api/x"),
        ("a=b; Path =/dashboard", "a=b; Path=/services/api/dashboard"),
        ("a=b;\tPATH\t=\t/dashboard", "a=b; Path=/services/api/dashboard"),
        ("a=b; Path=/services/api; Path=/dashboard", "a=b; Path=/services/api/dashboard"),
        ("a=b; Domain=fair.example; Path=/x", "a=b; Path=/services/api/x"),
        ("a=b; domain = .fair.example", "a=b"),
        ("a=b; Path=dashboard", "a=b"),
        ("a=b; Secure; SameSite=None", "a=b; Secure; SameSite=None"),
    ],
)
def test_a_cookie_stays_within_its_service(cookie: str, confined: str) -> None:
    assert below([("Set-Cookie", cookie)]) == [("Set-Cookie", confined)]
    assert below([("Set-Cookie", cookie)], stripped="") == [("Set-Cookie", confined)]


@pytest.mark.parametrize(
    "cookie",
    [
        "fairlead-dashboard=x; Path=/",
        " __Host-fairlead-dashboard =x; Path=/; Secure",
        "__hOsT-fairlead-service=x",
        "=fairlead-service=x",
        "fairlead-service",
    ],
)
def test_no_replica_sets_a_cookie_of_ours(cookie: str) -> None:
    assert below([("Set-Cookie", cookie)]) == at_own_host([("Set-Cookie", cookie)]) == []


def test_at_its_own_host_a_cookie_keeps_its_path_and_reaches_no_sibling() -> None:
    sent = ("Set-Cookie", "a=b; Domain=svc.example; Path=/x; HttpOnly")
    assert at_own_host([sent]) == [("Set-Cookie", "a=b; HttpOnly; Path=/x")]


def test_an_answer_without_a_path_of_its_own_sets_no_cookie() -> None:
    sent = [("Set-Cookie", "a=b"), ("Content-Type", "text/plain")]
    made = response_headers(sent, prefix="", stripped="", hosts=HOSTS, own_origin=False)
    assert made == [("Content-Type", "text/plain"), ("Content-Security-Policy", SANDBOX)]


ORDERS = [
    ("NEL", "{}"),
    ("Report-To", "{}"),
    ("Reporting-Endpoints", 'a="https://evil.example"'),
    ("Clear-Site-Data", '"*"'),
    ("Strict-Transport-Security", "max-age=1"),
    ("Alt-Svc", 'h2=":9"'),
    ("Service-Worker-Allowed", "/"),
    ("Accept-CH", "UA"),
    ("Critical-CH", "UA"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Origin-Agent-Cluster", "?1"),
    ("Permissions-Policy", "camera=*"),
    ("Refresh", "0; url=/dashboard"),
    ("Set-Login", "logged-in"),
    ("Speculation-Rules", '"/rules"'),
    ("Use-As-Dictionary", 'match="/dashboard/*"'),
    ("X-Accel-Redirect", "/secret"),
    ("X-Sendfile", "/secret"),
    ("Public-Key-Pins", "x"),
    ("Anything-New", "x"),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order[0])
def test_no_header_speaks_for_the_dashboards_origin(order: tuple[str, str]) -> None:
    assert below([order]) == []


def test_at_its_own_host_a_service_sets_policies_that_end_with_it() -> None:
    kept = {name for name, _ in at_own_host(ORDERS)}
    lasting = {"NEL", "Report-To", "Strict-Transport-Security", "Alt-Svc", "Set-Login"}
    of_siblings, of_reverse_proxies = {"Clear-Site-Data"}, {"X-Accel-Redirect", "X-Sendfile"}
    assert kept == {name for name, _ in ORDERS} - lasting - of_siblings - of_reverse_proxies


@pytest.mark.parametrize(
    "name", ["Content-Type", "ETag", "X-Request-Id", "X-Accel-Buffering", "openai-version", "Vary"]
)
def test_what_speaks_of_one_answer_passes(name: str) -> None:
    assert below([(name, "x")]) == [(name, "x")]


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("localhost:8700", "http://api.localhost:8700"),
        ("127.0.0.1:8700", "http://api.localhost:8700"),
        ("[::1]:8700", "http://api.localhost:8700"),
        ("localhost", "http://api.localhost"),
        ("desk.localhost:8700", "http://api.localhost:8700"),
        ("fair.example:8700", None),
        ("localhost.evil.example", None),
        ("10.0.0.5:8700", None),
        ("[::1", None),
    ],
)
def test_a_service_has_an_origin_of_its_own_on_the_clients_own_machine(
    host: str, own: str | None
) -> None:
    client = Client(address="1.1.1.1", forwarded_for="", scheme="http", host=host)
    assert headers.own_origin("api", client, None) == own


def below(sent: list[tuple[str, str]], stripped: str = "/services/api") -> list[tuple[str, str]]:
    """What of these headers reaches a client on the dashboard's origin, without the sandbox."""
    made = response_headers(
        sent, prefix="/services/api", stripped=stripped, hosts=HOSTS, own_origin=False
    )
    assert made[-1] == ("Content-Security-Policy", SANDBOX)
    return made[:-1]


def at_own_host(sent: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return response_headers(sent, prefix="", stripped="", hosts=HOSTS, own_origin=True)
