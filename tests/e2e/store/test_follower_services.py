"""Services at followers: requests go to replicas past the leader, and outlast it."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest

from fairlead.rest import ControllerClient, decode
from tests.e2e.store.test_leaders import Controllers
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.ssh_daemon import SshDaemon, free_port
from tests.support.testbed import ShimFactory
from tests.support.waiting import eventually, wait_until

pytestmark = pytest.mark.e2e
_APP = Path(__file__).parents[1] / "services" / "app.py"


@pytest.fixture
def controllers(
    database_url: str,
    tmp_path: Path,
    testbed_folder: Path,
    numbers: Iterator[int],
    shim_process: ShimFactory,
    sshd: SshDaemon,
) -> Iterator[Controllers]:
    """With a node that they reach by SSH alone. Its user for gateways can't enter `tmp_path`."""
    made = Controllers(tmp_path, database_url)
    with closing(made):
        made.start()
        exposed = testbed_folder / f"exposed{next(numbers)}"
        add_node(made, sshd, shim_process("process", "--cpus", "2", *sshd.lending(exposed)))
        yield made


def add_node(controllers: Controllers, sshd: SshDaemon, shim: ShimProcess) -> None:
    """Add the node of this shim, which they reach by SSH alone."""
    first = controllers.all[0]
    sshd.authorize(first.public_key)
    way = ["--host", "127.0.0.1", "--port", str(sshd.port), "--user", sshd.user]
    way += ["--socket", str(shim.socket), "--host-key", sshd.host_key]
    first.cli("node", "add", "n1", *way).succeeded()


def _serve(controllers: Controllers, name: str, replicas: int = 1, **fields: Any) -> None:
    """Return when all its replicas are ready."""
    first = controllers.all[0]
    port = free_port()
    body = {
        "type": "service",
        "name": name,
        "commands": [f"exec {sys.executable} {_APP} {port}"],
        "port": port,
        "probes": [{"type": "http", "url": "/", "interval": "1s"}],
        "resources": {"cpu": 0.1, "memory": "64MB"},
        **fields,
    }
    client = ControllerClient(first.url, controllers.token)
    client.post("/v1/runs", {"configuration": body})
    wait_until(lambda: _ready(client, name) == replicas, what="the replicas")


@asynccontextmanager
async def _carried(controllers: Controllers) -> AsyncIterator[aiohttp.ClientSession]:
    """A user's session, as soon as the second controller carries requests for `web` itself."""
    first, follower, _ = controllers.all
    await asyncio.to_thread(_serve, controllers, "web")
    async with aiohttp.ClientSession(headers=_bearer(controllers.token)) as session:
        await _carries(session, follower, first, "web")
        yield session


def _ready(client: ControllerClient, name: str) -> int:
    view = decode(client.get(f"/v1/services/{name}"), dict[str, Any])
    return sum(one["not_ready"] is None for one in view["replicas"])


async def test_requests_and_a_websocket_at_a_follower_outlast_the_leader(
    controllers: Controllers,
) -> None:
    first, follower, _ = controllers.all
    async with _carried(controllers) as session:
        answers: list[int | str] = []
        asking = asyncio.create_task(_ask_on(session, follower, "web", answers))
        async with session.ws_connect(f"{follower.url}/services/web/ws") as socket:
            await eventually(lambda: len(answers) > 20)
            await asyncio.to_thread(first.kill9)
            before = len(answers)
            while not await asyncio.to_thread(controllers.has_successor):
                await _talk(socket)
            # Requests went on while nobody led, and go on with the next leader.
            assert len(answers) > before
            after = len(answers)
            await eventually(lambda: len(answers) > after + 100)
            await _talk(socket)
        asking.cancel()
    assert set(answers) == {200}


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def _carries(
    session: aiohttp.ClientSession,
    follower: ControllerProcess,
    leader: ControllerProcess,
    name: str,
) -> None:
    """Return when the follower itself carries requests: the leader's proxy counts none of them."""

    async def is_carried() -> bool:
        before = await asyncio.to_thread(_carried_by, leader)
        for _ in range(3):
            async with session.get(f"{follower.url}/services/{name}/") as answer:
                assert answer.status == 200
        return await asyncio.to_thread(_carried_by, leader) == before

    carried: bool = await eventually(is_carried)
    assert carried


def _carried_by(one: ControllerProcess) -> list[str]:
    text = ControllerClient(one.url, one.token).get("/metrics").decode()
    return [
        line for line in text.splitlines() if line.startswith("fairlead_service_requests_total")
    ]


async def _talk(socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
    await socket.send_str("hello")
    assert await socket.receive_str() == "HELLO"


async def _ask_on(
    session: aiohttp.ClientSession,
    follower: ControllerProcess,
    name: str,
    answers: list[int | str],
) -> None:
    while True:
        try:
            async with session.get(f"{follower.url}/services/{name}/") as answer:
                await answer.read()
                answers.append(answer.status)
        except aiohttp.ClientError as error:
            answers.append(str(error))


async def test_a_replica_is_not_stopped_under_a_websocket_at_a_follower(
    controllers: Controllers,
) -> None:
    first, follower, _ = controllers.all
    async with _carried(controllers) as session:
        async with session.ws_connect(f"{follower.url}/services/web/ws") as socket:
            await asyncio.to_thread(controllers.post, first, "/v1/runs/web/stop", {})
            client = ControllerClient(first.url, controllers.token)
            # Its last word comes after all that a drain waits for but the WebSocket.
            while await asyncio.to_thread(_takes_new_requests, client, "web"):
                await _talk(socket)
            for _ in range(20):
                await _talk(socket)
            assert not await asyncio.to_thread(_has_ended, client, "web")
        await asyncio.to_thread(wait_until, lambda: _has_ended(client, "web"), what="its end")


def _takes_new_requests(client: ControllerClient, name: str) -> bool:
    view = decode(client.get(f"/v1/services/{name}"), dict[str, Any])
    return any(one["not_ready"] is None for one in view["replicas"])


def _has_ended(client: ControllerClient, name: str) -> bool:
    run = decode(client.get(f"/v1/runs/{name}"), dict[str, Any])
    finished_at: str | None = run["jobs"][0]["attempts"][0]["finished_at"]
    return finished_at is not None


async def test_a_browser_that_has_opened_a_service_at_a_follower_outlasts_the_leader(
    controllers: Controllers,
) -> None:
    first, follower, _ = controllers.all
    async with _carried(controllers):
        pass
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        browser = _Browser(session, follower, "web")
        await browser.log_in(controllers.token)
        await browser.open()
        assert await browser.status("same-origin") == 200
        await asyncio.to_thread(first.kill9)
        answers = 0
        while not await asyncio.to_thread(controllers.has_successor):
            assert await browser.status("same-origin") == 200
            answers += 1
        assert answers > 0
        for one in controllers.all[1:]:
            browser.at = one
            # A new leader has yet to reach the node.
            await browser.gets("same-origin", 200)
            # A page of another service made the browser send this.
            await browser.gets("same-site", 401)


async def test_what_goes_through_the_leader_waits_for_the_next_one_when_it_is_killed(
    controllers: Controllers,
) -> None:
    first, follower, _ = controllers.all
    limits = [{"prefix": "/", "rps": 100, "burst": 100}]
    async with _carried(controllers) as session:
        await asyncio.to_thread(_serve, controllers, "limited", rate_limits=limits)
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as plain:
            browser = _Browser(plain, follower, "web")
            await browser.log_in(controllers.token)
            # Its cookie sends what is below /services/ through the leader.
            cookie = {"Cookie": browser.login}
            await asyncio.to_thread(first.kill9)
            limited, with_cookie, _ = await asyncio.gather(
                _asked(session, "POST", f"{follower.url}/services/limited/"),
                _asked(session, "POST", f"{follower.url}/services/web/", headers=cookie),
                browser.open(),
            )
            assert (limited, with_cookie) == (405, 405), "they are the application's own"
            await browser.gets("same-origin", 200)


async def test_a_request_that_wakes_a_service_goes_on_at_the_next_leader_when_this_one_stops(
    controllers: Controllers, tmp_path: Path
) -> None:
    first, follower, _ = controllers.all
    port, go = free_port(), tmp_path / "go"
    body = {
        "type": "service",
        "name": "asleep",
        "commands": [
            f"while [ ! -e {go} ]; do sleep 0.1; done",
            f"exec {sys.executable} {_APP} {port}",
        ],
        "port": port,
        "replicas": "0..1",
        "scaling": {"metric": "rps", "target": 10},
        "probes": [{"type": "http", "url": "/", "interval": "1s"}],
        "resources": {"cpu": 0.1, "memory": "64MB"},
    }
    await asyncio.to_thread(controllers.post, first, "/v1/runs", {"configuration": body})
    client = ControllerClient(follower.url, controllers.token)
    async with aiohttp.ClientSession(headers=_bearer(controllers.token)) as session:
        url = f"{follower.url}/services/asleep/"
        waiting = asyncio.create_task(_asked(session, "POST", url))
        await asyncio.to_thread(wait_until, lambda: _runs(client, "asleep"), what="a replica")
        assert await asyncio.to_thread(first.stop) == 0
        go.touch()
        assert await waiting == 405, "it is the application's own"


def _runs(client: ControllerClient, name: str) -> bool:
    jobs = decode(client.get(f"/v1/runs/{name}"), dict[str, Any])["jobs"]
    return any(job["status"] == "running" for job in jobs)


async def _asked(session: aiohttp.ClientSession, method: str, url: str, **more: Any) -> int:
    async with session.request(method, url, **more) as answer:
        return answer.status


class _Browser:
    """Sends its cookies itself: it reaches each host name at the address of one controller."""

    def __init__(self, session: aiohttp.ClientSession, at: ControllerProcess, service: str) -> None:
        self.at = at
        self._session = session
        self._service = service
        self.login = ""
        self._cookie = ""

    async def log_in(self, token: str) -> None:
        """Log in at the dashboard."""
        async with self._get("/dashboard/login", "localhost") as answer:
            asked = re.search(r'name="asked" value="([^"]+)"', await answer.text())
            cookie = _cookie_of(answer)
        assert asked is not None
        form = {"asked": asked.group(1), "token": token}
        async with self._post("/dashboard/login", "localhost", cookie, form) as answer:
            assert answer.status in (200, 204, 303), await answer.text()
            self.login = _cookie_of(answer)

    async def open(self) -> None:
        """Open the service."""
        own = f"{self._service}.localhost"
        async with self._get("/.fairlead/login", own) as answer:
            opening = _cookie_of(answer)
            there = urlsplit(answer.headers["Location"])
        async with self._get(f"{there.path}?{there.query}", "localhost", self.login) as answer:
            assert answer.status == 303, await answer.text()
            given = parse_qs(urlsplit(answer.headers["Location"]).fragment)
        form = {"code": given["code"][0], "next": "/"}
        async with self._post("/.fairlead/enter", own, opening, form) as answer:
            assert answer.status == 303, await answer.text()
            self._cookie = _cookie_of(answer)

    async def status(self, site: str) -> int:
        own = f"{self._service}.localhost"
        async with self._get("/", own, self._cookie, **{"Sec-Fetch-Site": site}) as answer:
            return int(answer.status)

    async def gets(self, site: str, status: int) -> None:
        """Return once it is answered so."""

        async def is_so() -> bool:
            return await self.status(site) == status

        answered: bool = await eventually(is_so, what=f"{status} for {site}")
        assert answered

    def _get(self, path: str, host: str, cookie: str = "", **more: str) -> Any:
        headers = {"Host": self._host(host), "Cookie": cookie, "Accept": "text/html", **more}
        return self._session.get(self.at.url + path, headers=headers, allow_redirects=False)

    def _post(self, path: str, host: str, cookie: str, form: dict[str, str]) -> Any:
        headers = {"Host": self._host(host), "Cookie": cookie, "Sec-Fetch-Site": "same-origin"}
        return self._session.post(
            self.at.url + path, headers=headers, data=form, allow_redirects=False
        )

    def _host(self, name: str) -> str:
        return f"{name}:{urlsplit(self.at.url).port}"


def _cookie_of(answer: aiohttp.ClientResponse) -> str:
    return answer.headers["Set-Cookie"].partition(";")[0]
