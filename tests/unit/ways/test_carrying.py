"""A follower carries requests for services itself, or leaves them to the leader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from aiohttp import ClientError, ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request
from msgspec.structs import replace

from common.proxy.body import body_of
from common.proxy.entry import Settings
from common.proxy.view import Replica, Service
from common.refusals import Forbidden, Unauthenticated, Unavailable
from common.tokens import KEY_PREFIX, digest
from controller.api.app import figures
from controller.clock import SystemClock
from controller.forwarding.credentials import link_tls
from controller.forwarding.leader_links import LeaderLinks
from controller.proxy.sealed import SealedSessions
from controller.service.accounts.users import Credential
from controller.store.accounts import EndedLogin, ServiceKey
from controller.store.base import Changes
from controller.store.errors import StoreUnavailable
from controller.store.reading import Moment, StoreReader
from controller.store.sql import SqlStore
from controller.store.sqlite import SqliteDatabase
from controller.ways import admission
from controller.ways.admission import KNOWN_SECONDS, StoredAccess
from controller.ways.carrying import FollowerServices
from controller.ways.messages import ServicesChanged
from fairlead.wire.gateway import GatewayNode
from tests.support.replicas import accepting
from tests.support.waiting import eventually
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN, _gate

TO_THE_LEADER = 418
USER = "ada"
KEY = f"{KEY_PREFIX}{'a' * 64}"
SERVICE = Service(run_id="r", name="api", owner=USER)
NODE = GatewayNode(id="n", host="", host_key="", local=True)


class Bed:
    def __init__(self, store: SqlStore, reader: StoreReader) -> None:
        self.store = store
        self.reader = reader
        self.now = 0.0
        self.reads = 0
        self.is_away = False
        self._moment = reader.moment
        reader.moment = self._noted  # type: ignore[method-assign]
        self.access = StoredAccess(reader, SystemClock(), lambda: self.now)

    @asynccontextmanager
    async def _noted(self, seconds: float | None = None) -> AsyncIterator[Moment]:
        self.reads += 1
        if self.is_away:
            raise StoreUnavailable("away")
        async with self._moment(seconds) as moment:
            yield moment

    async def revoke(self, token: str) -> None:
        (id,) = [one.id for one in (await self.store.load()).tokens if one.digest == digest(token)]
        await self.store.commit(Changes(removed_tokens=(id,)))


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    database = SqliteDatabase(tmp_path)
    store = SqlStore(database)
    await store.open()
    await _gate(store)  # type: ignore[arg-type]
    made = Bed(store, StoreReader(database.reader))
    yield made
    await made.access.close()
    await made.reader.close()
    await store.close()


def bearer(token: str) -> str:
    return f"Bearer {token}"


# -- admission ----------------------------------------------------------------------------------


async def test_a_token_is_asked_for_at_each_request(bed: Bed) -> None:
    await bed.access.admit(SERVICE, bearer(USER_TOKEN))
    await bed.access.admit(SERVICE, bearer(ADMIN_TOKEN))
    await bed.revoke(USER_TOKEN)
    with pytest.raises(Unauthenticated):
        await bed.access.admit(SERVICE, bearer(USER_TOKEN))


async def test_another_users_service_is_forbidden(bed: Bed) -> None:
    with pytest.raises(Forbidden):
        await bed.access.admit(replace(SERVICE, owner="eve"), bearer(USER_TOKEN))


async def test_requests_that_come_at_once_share_a_read(bed: Bed) -> None:
    asked = [bed.access.admit(SERVICE, bearer(USER_TOKEN)) for _ in range(50)]
    await asyncio.gather(*asked)
    assert bed.reads == 1


async def test_a_key_opens_the_service_of_its_owner_alone(bed: Bed) -> None:
    key = ServiceKey(id="k", service="api", user=USER, digest=digest(KEY), created_at=0.0)
    await bed.store.commit(Changes(service_keys=(key,)))
    await bed.access.admit(SERVICE, bearer(KEY))
    for other in (replace(SERVICE, name="web"), replace(SERVICE, owner="eve")):
        with pytest.raises(Unauthenticated):
            await bed.access.admit(other, bearer(KEY))


async def test_without_the_database_a_known_token_holds_for_a_minute(bed: Bed) -> None:
    await bed.access.admit(SERVICE, bearer(USER_TOKEN))
    bed.is_away = True
    bed.now = KNOWN_SECONDS - 1
    await bed.access.admit(SERVICE, bearer(USER_TOKEN))
    with pytest.raises(Unavailable):
        await bed.access.admit(SERVICE, bearer(ADMIN_TOKEN))
    bed.now = KNOWN_SECONDS
    with pytest.raises(Unavailable):
        await bed.access.admit(SERVICE, bearer(USER_TOKEN))


@pytest.mark.parametrize("how", ["revoked", "unknown for a minute"])
async def test_an_open_request_ends_with_its_right(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.001)
    ended = asyncio.Event()
    admitted = await bed.access.admit(SERVICE, bearer(USER_TOKEN))
    with bed.access.while_admitted(admitted, ended.set):
        reads = bed.reads
        await eventually(lambda: bed.reads > reads + 2)
        assert not ended.is_set()
        if how == "revoked":
            await bed.revoke(USER_TOKEN)
        else:
            bed.is_away = True
            reads = bed.reads
            await eventually(lambda: bed.reads > reads + 2)
            assert not ended.is_set()
            bed.now += KNOWN_SECONDS
        await ended.wait()


# -- requests -----------------------------------------------------------------------------------


async def _replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says that it answered; below `/endless` it goes on."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        is_endless = head.split(b" ")[1].startswith(b"/endless")
        length = b"1000" if is_endless else b"7"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\nreplica" % length)
        await writer.drain()


class Carrying:
    def __init__(self, bed: Bed, folder: Path) -> None:
        self.bed = bed
        self.socket = folder / "a.sock"
        links = LeaderLinks(link_tls(b"secret", folder).follower)
        key = asyncssh.generate_private_key("ssh-ed25519")
        self.sealed = SealedSessions(b"secret", SystemClock())
        self.services = FollowerServices(
            links, bed.reader, SystemClock(), key, Settings(), self._leader, self.sealed
        )
        self.services._nodes.links.update([NODE])
        self.client: TestClient[Any, Any]

    async def _leader(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request, 1 << 20)
        assert body.data is not None
        return web.Response(status=TO_THE_LEADER, body=body.data)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/metrics/services":
            return figures(await self.services.figures(request))
        if self.services.takes(request):
            return await self.services.answer(request)
        return await self._leader(request)

    def told(self, *services: Service) -> None:
        replica = Replica(id="a", group="main", node_id="n", socket=str(self.socket), port=1)
        made = tuple(replace(one, replicas=(replica,)) for one in services)
        self.services._known.hear(ServicesChanged(version=1, begins=True, services=made))
        self.services._known.keep()

    async def status(self, path: str, token: str | None = USER_TOKEN, **headers: str) -> int:
        sent = {**({} if token is None else {"Authorization": bearer(token)}), **headers}
        async with self.client.get(path, headers=sent) as answer:
            await answer.read()
            return answer.status


@pytest.fixture
async def carrying(bed: Bed, tmp_path: Path) -> AsyncIterator[Carrying]:
    made = Carrying(bed, tmp_path)
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", made.answer)
    async with AsyncExitStack() as stack:
        accept = await stack.enter_async_context(accepting(_replica, b"ok\n"))
        server = await asyncio.start_unix_server(accept, made.socket)
        stack.callback(server.close)
        made.client = await stack.enter_async_context(TestClient(TestServer(app)))
        yield made
        await made.services.close()


async def test_who_may_use_a_service_reaches_its_replica(carrying: Carrying) -> None:
    public, others = replace(SERVICE, name="pub", auth=False, run_id="p"), {"owner": "eve"}
    carrying.told(SERVICE, public, replace(SERVICE, name="hers", run_id="h", **others))
    assert await carrying.status("/services/api/") == 200
    assert await carrying.status("/services/pub/", None) == 200
    assert await carrying.status("/services/api/", "unknown") == 401
    # The leader says what it says of a service that nobody has.
    assert await carrying.status("/services/hers/") == TO_THE_LEADER
    assert carrying.services.take()[0].requests == 1


async def test_an_admin_reads_how_many_requests_went_through_here(carrying: Carrying) -> None:
    carrying.told(SERVICE)
    assert await carrying.status("/services/api/") == 200
    asked = ("/metrics/services", {"Authorization": bearer(ADMIN_TOKEN)})
    async with carrying.client.get(asked[0], headers=asked[1]) as answer:
        page = await answer.text()
    counted = 'fairlead_service_requests_total{group="main",result="ok",service="api"} 1.0'
    assert counted in page.splitlines()
    for token, refused in ((USER_TOKEN, Forbidden), ("unknown", Unauthenticated)):
        request = make_mocked_request("GET", asked[0], {"Authorization": bearer(token)})
        with pytest.raises(refused):
            await carrying.services.figures(request)


@pytest.mark.parametrize(
    ("path", "token", "headers"),
    [
        ("/services/api/", None, {}),
        ("/services/api/", USER_TOKEN, {"Cookie": "a=b; fairlead-service=x"}),
        ("/services/none/", USER_TOKEN, {}),
        ("/v1/runs", USER_TOKEN, {}),
        ("/models/v1/models", USER_TOKEN, {}),
        ("/.fairlead/login", None, {"Host": "pub.localhost"}),
    ],
)
async def test_what_only_the_leader_knows_goes_to_it(
    carrying: Carrying, path: str, token: str | None, headers: dict[str, str]
) -> None:
    carrying.told(SERVICE, replace(SERVICE, name="pub", auth=False, run_id="p"))
    assert await carrying.status(path, token, **headers) == TO_THE_LEADER


async def test_a_model_is_found_by_its_name(carrying: Carrying) -> None:
    carrying.told(replace(SERVICE, model="llama"))
    for model, status in (("llama", 200), ("other", TO_THE_LEADER)):
        body = {"model": model}
        headers = {"Authorization": bearer(USER_TOKEN)}
        path = "/models/v1/completions"
        async with carrying.client.post(path, json=body, headers=headers) as answer:
            assert answer.status == status
            if status == TO_THE_LEADER:
                # Its body was read here first.
                assert json.loads(await answer.read()) == body


async def test_what_reaches_no_replica_goes_to_the_leader_with_its_body(
    carrying: Carrying,
) -> None:
    carrying.told(SERVICE)
    carrying.socket.unlink()
    headers = {"Authorization": bearer(USER_TOKEN)}
    for _ in range(2):
        async with carrying.client.post("/services/api/", data=b"x" * 9, headers=headers) as answer:
            assert (answer.status, await answer.read()) == (TO_THE_LEADER, b"x" * 9)


async def test_an_answer_that_is_under_way_is_cut_when_its_token_ends(
    carrying: Carrying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.01)
    carrying.told(SERVICE)
    headers = {"Authorization": bearer(USER_TOKEN)}
    async with carrying.client.get("/services/api/endless", headers=headers) as answer:
        assert await answer.content.readexactly(7) == b"replica"
        assert carrying.services.in_flight() == {"a": 1}
        await carrying.bed.revoke(USER_TOKEN)
        await _is_cut(answer)
    await eventually(lambda: carrying.services.in_flight() == {})


# -- browsers that have logged in ---------------------------------------------------------------

OWN_PAGE = {"Host": "api.localhost", "Sec-Fetch-Site": "same-origin"}


async def _session(carrying: Carrying, login: str = "l1") -> dict[str, str]:
    """Return the headers of a page whose reader the leader has let in."""
    tokens = (await carrying.bed.store.load()).tokens
    (token,) = [one for one in tokens if one.digest == digest(USER_TOKEN)]
    value = carrying.sealed.open(SERVICE, "flb_x", Credential(token=token, login=login))
    return {**OWN_PAGE, "Cookie": f"fairlead-service={value}"}


async def _log_out(carrying: Carrying, login: str) -> None:
    users = (await carrying.bed.store.load()).users
    (user,) = [one for one in users if one.name == USER]
    ended = (EndedLogin(id=login, until=1e12),)
    await carrying.bed.store.commit(Changes(users=(replace(user, ended_logins=ended),)))


@pytest.mark.parametrize("how", ["logged out", "revoked"])
async def test_a_browser_that_has_logged_in_reaches_its_service_until_that_ends(
    carrying: Carrying, how: str
) -> None:
    carrying.told(SERVICE)
    mine, other = await _session(carrying), await _session(carrying, "l2")
    assert await carrying.status("/", None, **mine) == 200
    assert await carrying.status("/", None, **other) == 200
    if how == "revoked":
        await carrying.bed.revoke(USER_TOKEN)
    else:
        await _log_out(carrying, "l1")
    assert await carrying.status("/", None, **mine) == 401
    assert await carrying.status("/", None, **other) == (401 if how == "revoked" else 200)


async def test_what_a_browser_has_open_ends_with_its_login(
    carrying: Carrying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.01)
    carrying.told(SERVICE)
    headers = await _session(carrying)
    async with carrying.client.get("/endless", headers=headers) as answer:
        assert await answer.content.readexactly(7) == b"replica"
        await _log_out(carrying, "l1")
        await _is_cut(answer)


async def test_a_page_of_another_origin_is_not_its_reader(carrying: Carrying) -> None:
    carrying.told(SERVICE)
    mine = await _session(carrying)
    for headers in ({"Sec-Fetch-Site": "same-site"}, {"Origin": "http://evil.localhost"}):
        assert await carrying.status("/", None, **{**mine, **headers}) == 401


async def test_a_login_and_a_cookie_that_is_not_known_here_are_the_leaders(
    carrying: Carrying,
) -> None:
    carrying.told(SERVICE, replace(SERVICE, name="web", run_id="w"))
    mine = await _session(carrying)
    for path, headers in (
        ("/.fairlead/login", mine),
        ("/.fairlead/enter", mine),
        ("/", {**OWN_PAGE, "Cookie": "fairlead-service=of-its-memory"}),
        ("/", {**mine, "Host": "web.localhost"}),
        ("/services/api/", {**mine, "Host": "localhost"}),
        ("/", {**mine, "Authorization": f"Bearer flb_{mine['Cookie'].partition('=')[2]}"}),
    ):
        assert await carrying.status(path, None, **headers) == TO_THE_LEADER, path


@pytest.mark.parametrize(
    "garbled",
    [
        "",
        '"',
        "%00",
        "gAAAAA",
        "ä",
        "a" * 7000,
        "x; fairlead-service=y",
        "VALUE; fairlead-service=VALUE",
        '"VALUE"',
        "VALUE=",
        "VALUE.x",
        "VALU",
    ],
)
async def test_what_is_made_of_a_cookie_is_the_leaders(carrying: Carrying, garbled: str) -> None:
    carrying.told(SERVICE)
    value = (await _session(carrying))["Cookie"].partition("=")[2]
    cookie = f"fairlead-service={garbled.replace('VALUE', value).replace('VALU', value[:-1])}"
    assert await carrying.status("/", None, **OWN_PAGE, Cookie=cookie) == TO_THE_LEADER


async def test_browsers_that_come_at_once_share_reads(carrying: Carrying) -> None:
    carrying.told(SERVICE)
    browsers = [await _session(carrying, f"l{number}") for number in range(30)]
    before = carrying.bed.reads
    found = await asyncio.gather(*(carrying.status("/", None, **one) for one in browsers))
    assert set(found) == {200}
    assert carrying.bed.reads - before < 30


async def _is_cut(answer: ClientResponse) -> None:
    with pytest.raises(ClientError):
        await answer.read()
