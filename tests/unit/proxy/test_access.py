"""Tokens, keys and rate limits of services."""

import pytest
from yarl import URL

from common.proxy.view import RequestLimit
from controller.store.base import Changes
from tests.support.replicas import an_app, echo
from tests.unit.proxy.bed import KEY, a_bed, as_user

OWN_KEY = {"Authorization": f"Bearer {KEY}"}


async def status(headers: dict[str, str], **fields: object) -> tuple[int, str]:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True, **fields)
        async with bed.client.get("/services/api/", headers=headers) as answer:
            body = await answer.text()
            return answer.status, body


@pytest.mark.parametrize("headers", [as_user("ada"), as_user("root"), OWN_KEY])
async def test_the_owner_an_admin_and_a_key_are_let_in_and_the_replica_sees_no_secret(
    headers: dict[str, str],
) -> None:
    found, body = await status(headers)
    assert found == 200
    assert "authorization" not in body
    assert headers["Authorization"] not in body


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 401),
        ({"Authorization": "Bearer fl_wrong"}, 401),
        ({"Authorization": "Bearer flk_wrong"}, 401),
        ({"Authorization": "Basic YTpi"}, 401),
        (as_user("bob"), 404),
    ],
)
async def test_others_are_refused_with_what_to_do(headers: dict[str, str], expected: int) -> None:
    found, body = await status(headers)
    assert found == expected
    assert "fairlead" in body
    assert '"path"' not in body


@pytest.mark.parametrize("headers", [{}, OWN_KEY, as_user("bob"), {"Accept": "text/html"}])
@pytest.mark.parametrize("host", ["127.0.0.1", "fair.example"])
async def test_a_refusal_does_not_tell_whether_there_is_a_service(
    headers: dict[str, str], host: str
) -> None:
    heard = set()
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True, name="alpha")
        for name in ("alpha", "gamma"):
            sent = {"Host": host, **headers}
            path = f"/services/{name}/"
            async with bed.client.get(path, headers=sent, allow_redirects=False) as answer:
                said = f"{answer.status} {answer.headers.get('Location')} {await answer.text()}"
                heard.add(said.replace(name, "NAME"))
    assert len(heard) == 1


async def test_a_key_opens_only_the_service_of_its_name_and_owner() -> None:
    assert (await status(OWN_KEY, owner="bob"))[0] == 401
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True, name="other")
        async with bed.client.get("/services/other/", headers=OWN_KEY) as answer:
            assert answer.status == 401


async def test_a_revoked_key_is_refused_at_once() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, auth=True)
        bed.gate.apply(Changes(removed_service_keys=("k",)))
        async with bed.client.get("/services/api/", headers=OWN_KEY) as answer:
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


async def test_without_auth_the_replicas_own_authorization_passes_and_ours_does_not() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port)
        for sent, passed in (("Bearer app-secret", True), (f"Bearer {KEY}", False)):
            async with bed.client.get("/services/api/", headers={"Authorization": sent}) as answer:
                assert (sent in await answer.text()) is passed


async def test_a_rate_limit_holds_for_each_client_below_its_prefix() -> None:
    limits = (
        RequestLimit(prefix="/", rps=1000.0, burst=1000),
        RequestLimit(prefix="/v1", header="X-Key", rps=0.1, burst=2),
    )
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, rate_limits=limits)

        async def ask(path: str, key: str) -> int:
            async with bed.client.get(f"/services/api{path}", headers={"X-Key": key}) as answer:
                if answer.status == 429:
                    assert 0 < int(answer.headers["Retry-After"]) <= 10
                return int(answer.status)

        assert [await ask("/v1/x", "a") for _ in range(3)] == [200, 200, 429]
        assert await ask("/x/..//%761/x", "a") == 429
        assert await ask("/v1/x", "b") == 200
        assert await ask("/x", "a") == 200


async def test_a_limit_by_address_counts_the_client_behind_a_reverse_proxy_here() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, rate_limits=(RequestLimit(rps=0.1, burst=1),))
        found = []
        for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1"):
            headers = {"X-Forwarded-For": f"9.9.9.9, {address}"}
            async with bed.client.get("/services/api/", headers=headers) as answer:
                found.append(answer.status)
    assert found == [200, 200, 429]


async def test_an_unknown_service_is_404_and_a_path_out_of_it_400() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port)
        async with bed.client.get("/services/nothing/", headers=as_user("root")) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (404, "not_found")
        for path in ("/services/api/%2e%2e/v1", "/services/api/a/../../v1"):
            url = URL(f"http://127.0.0.1:{bed.client.port}{path}", encoded=True)
            async with bed.client.session.get(url) as answer:
                assert answer.status == 400
        async with bed.client.get("/services/API%2f/x") as answer:
            assert answer.status == 404
