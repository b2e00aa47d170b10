"""A leader and a follower on one database, with the feed between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from controller.api.app import make_runner
from controller.api.http.streams import end_streams
from controller.clock import SystemClock
from controller.daemon.lease import Leading as Lease
from controller.forwarding.credentials import LinkTls, link_tls
from controller.forwarding.dashboard_reads import DashboardReads
from controller.forwarding.feeding import Feeding
from controller.forwarding.follower_links import FollowerLinks
from controller.forwarding.leader_feed import LeaderFeed
from controller.forwarding.leader_links import LeaderLinks
from controller.relay import leader_at
from controller.replica.answers import Answers
from controller.service import ControllerService
from controller.service.jobs.logs import follow_log
from controller.store.reading import StoreReader
from controller.store.sqlite import SqliteDatabase
from controller.web.app import Dashboard, session_key
from tests.unit.api.conftest import USER_TOKEN
from tests.unit.forwarding.test_reads import Bed, bearer, opened_bed

SECRET = b"secret of the tests"
LIMIT = aiohttp.ClientTimeout(total=120)


class Leading:
    """The leader's server as followers reach it. `starts` counts those that came one after another
    over the same state."""

    def __init__(self, service: ControllerService, tls: LinkTls, links: LeaderLinks) -> None:
        self.service = service
        self.tls = tls
        self.links = links
        self.dashboard = Dashboard(service, session_key(SECRET), lambda: 0.0)
        self.now = 0.0
        self.lease = Lease(5.0, lambda: self.now)
        self.lease.renewed(0.0)
        self.feeds = 0
        self.logs = 0
        """Streams that followers have begun."""
        self.starts = 0
        self.url = ""
        self.runner: web.AppRunner | None = None

    async def start(self, *, feeds: bool = True) -> None:
        feeding = Feeding(self.service)

        async def feed(request: web.Request, response: web.StreamResponse) -> None:
            self.feeds += 1
            try:
                await feeding.feed(request, response)
            finally:
                self.feeds -= 1

        taken = FollowerLinks(self.tls.leader, self._log, feed if feeds else None, self.lease)
        runner = make_runner(
            self.service,
            shutdown_timeout=0.1,
            mounts=(taken.mount, self.dashboard.mount),
            first=(taken.middleware,),
        )
        taken.serve_with(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.runner, self.starts = runner, self.starts + 1
        self.url = "http://{}:{}".format(*runner.addresses[0][:2])
        self.links.lead_to(leader_at(self.url, str(self.starts)))

    async def _log(self, run: str, attempt: str, offset: int) -> AsyncIterator[bytes]:
        self.logs += 1
        return follow_log(self.service.runs.lookup, self.service.jobs.logs, run, attempt, offset)

    async def stop(self) -> None:
        runner, self.runner = self.runner, None
        if runner is not None:
            self.links.lead_to(None)
            await runner.cleanup()


class WatchBed:
    def __init__(self, bed: Bed, leading: Leading, feed: LeaderFeed, reads: DashboardReads) -> None:
        self.bed = bed
        self.leading = leading
        self.feed = feed
        self.reads = reads

    def watch(self, path: str, token: str = USER_TOKEN) -> Any:
        return self.bed.follower.get(path, headers=bearer(token), timeout=LIMIT)

    async def status(self, path: str, token: str = USER_TOKEN, **headers: str) -> int:
        more = {**bearer(token), **headers}
        async with self.bed.follower.get(path, headers=more) as answer:
            return answer.status


MakeAnswers = Callable[[StoreReader, SqliteDatabase, LeaderFeed], Answers]


@asynccontextmanager
async def opened_watch_bed(
    tmp_path: Path, answers: MakeAnswers | None = None
) -> AsyncIterator[WatchBed]:
    tls = link_tls(b"secret", tmp_path)
    links = LeaderLinks(tls.follower)
    feed = LeaderFeed(links)
    made: list[DashboardReads] = []

    def reads(reader: StoreReader) -> DashboardReads:
        made.append(DashboardReads(reader, SystemClock(), feed, session_key(SECRET)))
        return made[0]

    def copied(reader: StoreReader, database: SqliteDatabase) -> Answers:
        assert answers is not None
        return answers(reader, database, feed)

    async with opened_bed(tmp_path, reads, answers=copied if answers else None) as bed:
        leading = Leading(bed.controller.service, tls, links)
        await leading.start()
        yield WatchBed(bed, leading, feed, made[0])
        await end_streams(bed.follower.app)
        await made[0].close()
        links.close()
        await leading.stop()
