"""The proxy's changes to paths and headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.proxy import headers
from controller.proxy.headers import plain_path, response_headers, target_by_path
from controller.proxy.view import Service

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
    ("name", "value", "expected"),
    [
        ("Location", "/login", "/services/api/login"),
        ("Location", "/services/api/login", "/services/api/login"),
        ("Location", "next", "next"),
        ("Location", "//other.example/x", "//other.example/x"),
        ("Location", "https://fair.example/x?y", "https://fair.example/services/api/x?y"),
        ("Location", "https://other.example/x", "https://other.example/x"),
        ("Set-Cookie", "a=b; Path=/; HttpOnly", "a=b; Path=/services/api/; HttpOnly"),
        ("Set-Cookie", "a=b; Domain=fair.example; path=/x", "a=b; Path=/services/api/x"),
        ("Set-Cookie", "a=b", "a=b"),
        ("X-Path", "/login", "/login"),
    ],
)
def test_redirects_and_cookies_of_a_stripped_path_get_it_back(
    name: str, value: str, expected: str
) -> None:
    def made(prefix: str) -> list[tuple[str, str]]:
        return response_headers([(name, value)], prefix=prefix, hosts=HOSTS, own_origin=not prefix)

    assert made("/services/api") == [(name, expected)]
    assert made("") == [(name, value)]


def test_a_replica_without_an_origin_of_its_own_cannot_reach_beyond_its_pages() -> None:
    sent = [("Service-Worker-Allowed", "/"), ("Content-Type", "text/javascript")]
    sent += [("Cross-Origin-Opener-Policy", "same-origin")]

    def kept(own_origin: bool) -> list[tuple[str, str]]:
        return response_headers(sent, prefix="", hosts=frozenset(), own_origin=own_origin)

    assert kept(own_origin=False) == [("Content-Type", "text/javascript")]
    assert kept(own_origin=True) == sent
