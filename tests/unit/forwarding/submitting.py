"""A leader and followers of it on one database, all with their own servers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from controller.api.app import make_runner
from controller.blobs import BlobStore
from controller.clock import SystemClock, system_chance
from controller.daemon.lease import Leading
from controller.forwarding.credentials import link_tls
from controller.forwarding.follower import Follower
from controller.forwarding.follower_links import SUBMISSIONS_PATH, FollowerLinks
from controller.forwarding.leader_links import LeaderLinks
from controller.forwarding.submissions.admitting import Admitting
from controller.forwarding.submissions.messages import Message, Reading
from controller.forwarding.submissions.readings import Readings
from controller.logs.store import LogStore
from controller.metric_history import MetricHistory
from controller.outputs.store import OutputStore
from controller.relay import Leader, Relay, leader_at
from controller.replica.answers import AnsweringCopy, Answers, ForPages
from controller.replica.copy import Chosen
from controller.replica.reading import Following
from controller.store.reading import StoreReader
from controller.store.sql import SqlStore
from controller.store.turns.changed_state import Beginning
from controller.vault import KeyFile, Vault
from controller.web.app import session_key
from controller.web.assets import Assets
from fairlead.configuration.runs.plan import Defaults
from tests.doubles.memory_store import MemoryStore
from tests.doubles.watched_databases import FollowedSqlite
from tests.support.waiting import eventually
from tests.unit.api.conftest import USER_TOKEN, Controller, _gate
from tests.unit.forwarding.watching import SECRET
from tests.unit.replica.test_answers import NoFeed

TASK = {"type": "task", "image": "busybox", "commands": ["true"]}
CLOCK = SystemClock()
Answer = tuple[int, Any, dict[str, str]]


class AServer:
    """An application at an address."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def post(
        self,
        path: str,
        body: object,
        token: str | None = USER_TOKEN,
        method: str = "POST",
        **headers: str,
    ) -> Answer:
        """Return the status, the document and the headers of the answer."""
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        given: Any = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, headers=headers, **given) as answer,
        ):
            told = {name: value for name, value in answer.headers.items() if name not in _VARY}
            return answer.status, await answer.json(), told

    async def put(self, path: str, body: object) -> Answer:
        return await self.post(path, body, method="PUT")

    async def submit(self, **body: object) -> Answer:
        return await self.post("/v1/runs", {"configuration": TASK, **body})


_VARY = ("Date", "Content-Length", "Server")


class ALeader(AServer):
    """`messages`: what followers gave it at once; `passed_on`: the requests that came on links as
    their clients sent them, by path."""

    def __init__(self, bed: Bed, name: str, defaults: Defaults, *, knows_messages: bool) -> None:
        self.name = name
        self.lead = Leading(3600.0, lambda: self.now)
        self.now = 0.0
        self.lead.renewed(0.0)
        self.messages: list[Message] = []
        self.passed_on: Counter[str] = Counter()
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self._admitting = Admitting(bed.controller.service, self.lead, Reading(defaults))
        self.links = FollowerLinks(
            bed.tls.leader, lease=self.lead, submit=self._noted if knows_messages else None
        )
        self.runner = make_runner(
            bed.controller.service,
            shutdown_timeout=0.1,
            mounts=(self.links.mount,),
            lead=self.lead,
            first=(self._count, self.links.middleware),
        )
        self.links.serve_with(self.runner)

    async def serve(self) -> None:
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        host, port = self.runner.addresses[0][:2]
        super().__init__(f"http://{host}:{port}")

    @property
    def at(self) -> Leader:
        return leader_at(self.url, self.name)

    @property
    def _count(self) -> Middleware:
        @web.middleware
        async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
            if self.links._is_on_link(request) and request.method == "POST":
                self.passed_on[request.path] += request.path != SUBMISSIONS_PATH
            return await handler(request)

        return count

    async def _noted(self, request: web.Request) -> web.StreamResponse:
        self.messages.append(msgspec.msgpack.decode(await request.read(), type=Message))
        await self.goes_on.wait()
        return await self._admitting.answer(request)

    @property
    def late(self) -> int:
        """Requests of messages that wait there for something outside."""
        return self._admitting._late._late

    def abort(self) -> None:
        """End all connections to it."""
        assert self.runner.server is not None
        for connection in self.runner.server.connections:
            assert connection.transport is not None
            connection.transport.abort()


class AFollower(AServer):
    def __init__(self, follower: Follower, relay: Relay, url: str) -> None:
        super().__init__(url)
        self.follower = follower
        self.relay = relay
        self.following: Following[AnsweringCopy]

    async def lead_to(self, leader: ALeader | None) -> None:
        """Return when it has a copy of the state."""
        self.relay.lead_to(None if leader is None else leader.at)
        await eventually(lambda: self.following.is_loaded)


class Bed:
    def __init__(self, folder: Path, closing: contextlib.AsyncExitStack) -> None:
        self.folder = folder
        self.closing = closing
        self.tls = link_tls(b"secret", folder)
        self.database: FollowedSqlite
        self.controller: Controller
        self.followers = 0

    async def leader(
        self, name: str = "one", defaults: Defaults | None = None, *, knows_messages: bool = True
    ) -> ALeader:
        made = ALeader(self, name, defaults or Defaults(), knows_messages=knows_messages)
        await made.serve()
        self.closing.push_async_callback(made.runner.cleanup)
        self.closing.callback(made.goes_on.set)
        return made

    async def follower(self, leader: ALeader | None = None) -> AFollower:
        reader = StoreReader(self.database.reader, answer_seconds=3600.0)
        self.closing.push_async_callback(reader.close)
        chance = system_chance()
        pages = ForPages(
            key=session_key(SECRET), now=asyncio.get_running_loop().time, assets=Assets()
        )

        def made(beginning: Beginning) -> AnsweringCopy:
            return AnsweringCopy(beginning, reader, CLOCK, chance, Chosen(), pages)

        following = Following(StoreReader(self.database.reader, 3600.0), made, CLOCK)
        answers = Answers(following, NoFeed())
        self.closing.push_async_callback(answers.close)
        readings = Readings(following, reader, Reading(Defaults()))
        follower = Follower(
            LeaderLinks(self.tls.follower), None, answers=answers, readings=readings
        )
        follower.forwarder._hold_seconds = 30.0
        await follower.start()
        self.closing.push_async_callback(follower.close)
        relay = Relay(30.0, follower)
        listening = socket.create_server(("127.0.0.1", 0))
        self.closing.callback(listening.close)
        self.closing.push_async_callback(relay.close)
        await relay.listen(listening)
        opened = AFollower(follower, relay, f"http://127.0.0.1:{listening.getsockname()[1]}")
        opened.following = following
        if leader is not None:
            await opened.lead_to(leader)
        return opened


@asynccontextmanager
async def opened_bed(folder: Path) -> AsyncIterator[Bed]:
    async with contextlib.AsyncExitStack() as closing:
        bed = Bed(folder, closing)
        bed.database = FollowedSqlite(folder)
        store = SqlStore(bed.database)
        await store.open()
        closing.push_async_callback(store.close)
        as_double = cast(MemoryStore, store)
        logs, outputs = LogStore(folder / "logs"), OutputStore(folder / "outputs")
        closing.push_async_callback(asyncio.to_thread, outputs.close)
        closing.push_async_callback(asyncio.to_thread, logs.close)
        keys = await asyncio.to_thread(KeyFile.open, folder / "secrets.key")
        bed.controller = Controller(
            as_double,
            logs,
            await _gate(as_double),
            BlobStore(folder / "blobs"),
            Vault(keys),
            MetricHistory(folder / "metrics"),
            outputs,
        )
        work = asyncio.create_task(bed.controller.pipeline.run())
        try:
            yield bed
        finally:
            await closing.aclose()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def both(bed: Bed) -> tuple[ALeader, AFollower]:
    """Return a leader and a follower that knows how that one takes submissions."""
    leader = await bed.leader()
    follower = await bed.follower(leader)
    assert (await follower.submit())[0] == 201
    leader.messages.clear()
    return leader, follower


async def on_the_way(leader: ALeader, follower: AFollower, **body: object) -> asyncio.Task[Answer]:
    """Return a submission that the leader has, and does not answer until it goes on."""
    leader.goes_on.clear()
    before = len(leader.messages)
    sending = asyncio.create_task(follower.submit(**body))
    await eventually(lambda: len(leader.messages) == before + 1)
    return sending


def waiting_at(follower: AFollower) -> int:
    assert follower.follower._submissions is not None
    queue = follower.follower._submissions._batches._queue
    return sum(not one.sent.done() for one in queue)
