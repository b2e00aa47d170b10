"""What a controller among several opens for followers: as a leader, and as one of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

import asyncssh

from common.proxy.entry import Elsewhere
from controller import identity
from controller.assembly import Assembly
from controller.clock import SystemClock, system_chance
from controller.daemon.lease import Leading
from controller.daemon.options import CannotStart, Options
from controller.daemon.own_folders import OwnFolders
from controller.daemon.stores import followed_bucket
from controller.forwarding.credentials import LinkTls, link_tls
from controller.forwarding.dashboard_reads import DashboardReads
from controller.forwarding.feeding import Feeding
from controller.forwarding.final_logs import FOLDER_NAME, FinalLogs
from controller.forwarding.follower import Follower
from controller.forwarding.follower_links import LOG_REST_SECONDS, FollowerLinks
from controller.forwarding.leader_feed import LeaderFeed
from controller.forwarding.leader_links import LeaderLinks
from controller.forwarding.live_logs import FOLDER_NAME as LIVE_FOLDER_NAME
from controller.forwarding.live_logs import LeaderLogs, LiveLogs
from controller.forwarding.submissions.admitting import Admitting
from controller.forwarding.submissions.messages import Reading
from controller.forwarding.submissions.readings import Readings
from controller.pipelines.performers.cluster import secret_of, ways_key
from controller.proxy.sealed import SealedSessions
from controller.replica.answers import AnsweringCopy, Answers, ForPages
from controller.replica.copy import Chosen
from controller.replica.reading import Following
from controller.replica.uploads import FOLDER_NAME as UPLOADS_NAME
from controller.replica.uploads import Uploads
from controller.service import ControllerService, Settings
from controller.service.jobs.logs import follow_log
from controller.store.reading import StoreReader
from controller.store.sql import Database
from controller.store.turns.changed_state import Beginning
from controller.tls import ServerCertificate
from controller.ways.carrying import FollowerServices
from controller.ways.exposing import Exposer
from controller.ways.job_ports import JobPorts
from controller.ways.leader import FollowerWays, Parts
from controller.ways.lent import LentWays
from controller.web.app import session_key
from controller.web.assets import installed


async def follower(
    options: Options, certificate: ServerCertificate | None, closing: contextlib.AsyncExitStack
) -> Follower | None:
    """Return what serves while this controller waits, which `closing` closes; None: it has no keys
    yet, and carries connections byte by byte. Raises CannotStart."""
    tls = await asyncio.to_thread(_link_tls, options)
    if tls is None:
        return None
    context = None if certificate is None else certificate.context
    reads, answers, ports, services, readings = None, None, None, None, None
    links = LeaderLinks(tls.follower)
    if options.database is not None and options.peers is not None:
        own = OwnFolders(options.data, options.peers.url)
        closing.callback(own.close)
        store = StoreReader(options.database.reader)
        closing.push_async_callback(store.close)
        final = await _final_logs(options, own, closing)
        of_leader = LeaderLogs(links)
        folder = await asyncio.to_thread(own.take, LIVE_FOLDER_NAME)
        live = LiveLogs(folder, of_leader.follow, of_leader.find)
        closing.push_async_callback(live.close)
        await live.start()
        node_key = await asyncio.to_thread(_key, options)
        secret = secret_of(node_key)
        key, services = session_key(secret), partial(_services, options, secret, links)
        feed, site = LeaderFeed(links), options.proxy.site
        reads = DashboardReads(store, SystemClock(), feed, key, site, final, live)
        closing.push_async_callback(reads.close)
        uploads = await _uploads(options, own, closing)
        following = _following(options, options.database, node_key, store, uploads)
        answers = Answers(following, feed, uploads)
        closing.push_async_callback(answers.close)
        readings = Readings(following, store, Reading(options.defaults))
        ports = JobPorts(reads, LentWays(links, _ways_identity(secret)), secret)
        closing.push_async_callback(ports.close)
    domain = options.proxy.domain
    opened = Follower(links, context, domain, reads, answers, services, ports, readings)
    closing.push_async_callback(opened.close)
    await opened.start()
    return opened


def _following(
    options: Options,
    database: Database,
    key: asyncssh.SSHKey,
    store: StoreReader,
    uploads: Uploads | None,
) -> Following[AnsweringCopy]:
    clock, chance, assets = SystemClock(), system_chance(), installed()
    chosen = Chosen(
        settings=Settings(
            defaults=options.defaults,
            logs_kept_for=options.keep.effective_logs,
            outputs_kept_for=options.keep.effective_outputs,
            service_url=options.proxy.url_of,
            node_key=identity.public_line(key),
        ),
        providers=tuple(options.providers),
        spending=options.spending,
    )
    pages = ForPages(
        key=session_key(secret_of(key)),
        now=asyncio.get_running_loop().time,
        assets=assets,
        site=options.proxy.site,
        service_domain=options.proxy.domain,
    )

    def made(beginning: Beginning) -> AnsweringCopy:
        id = beginning.installation_id
        blobs = None if uploads is None or id is None else uploads.store(id)
        return AnsweringCopy(beginning, store, clock, chance, chosen, pages, blobs)

    return Following(StoreReader(database.reader), made, clock)


def _services(
    options: Options, secret: bytes, links: LeaderLinks, elsewhere: Elsewhere
) -> FollowerServices:
    assert options.database is not None, "followers share one"
    # A session of its own: a list of many runs would else delay each request.
    store = StoreReader(options.database.reader)
    identity, clock = _ways_identity(secret), SystemClock()
    sealed = SealedSessions(secret, clock)
    return FollowerServices(links, store, clock, identity, options.proxy, elsewhere, sealed)


async def sealed_sessions(options: Options) -> SealedSessions:
    """Return the browsers' sessions with services, which all controllers know. Raises
    CannotStart."""
    return SealedSessions(secret_of(await asyncio.to_thread(_key, options)), SystemClock())


def _ways_identity(secret: bytes) -> asyncssh.SSHKey:
    return asyncssh.import_private_key(ways_key(secret).private)


async def _final_logs(
    options: Options, own: OwnFolders, closing: contextlib.AsyncExitStack
) -> FinalLogs | None:
    folder = await asyncio.to_thread(own.take, FOLDER_NAME)
    if options.logs_bucket is None:
        return None
    logs = FinalLogs(folder, partial(followed_bucket, options))
    closing.push_async_callback(logs.close)
    await logs.start()
    return logs


async def _uploads(
    options: Options, own: OwnFolders, closing: contextlib.AsyncExitStack
) -> Uploads | None:
    """Return what takes uploads; None: they are on the leader's disk."""
    # Also without a bucket: an earlier start may have had one.
    folder = await asyncio.to_thread(own.take, UPLOADS_NAME)
    if options.bucket is None:
        return None
    limits = options.max_upload, options.max_uploads_of_user
    uploads = Uploads(folder, options.bucket, *limits)
    closing.push_async_callback(uploads.close)
    await uploads.start()
    return uploads


async def links_of_followers(
    options: Options, service: ControllerService, assembly: Assembly, leading: Leading
) -> tuple[FollowerLinks, ...]:
    """Return what takes the links of followers, if it has keys. Raises CannotStart."""
    tls = await asyncio.to_thread(_link_tls, options)
    if tls is None:
        return ()
    follow_log, feed = partial(_follow_log, service), Feeding(service).feed
    nodes = Exposer(
        pipeline=assembly.pipeline,
        connect=assembly.nodes.connection,
        keys=assembly.gateways.keys,
        fence=assembly.fence,
    )
    ways = _ways(assembly, nodes)
    submit = Admitting(service, leading, Reading(options.defaults)).answer
    return (FollowerLinks(tls.leader, follow_log, feed, leading, ways.feed, nodes.lend, submit),)


def _ways(assembly: Assembly, nodes: Exposer) -> FollowerWays:
    parts = Parts(routes=assembly.routes, traffic=assembly.traffic, nodes=nodes)
    ways = FollowerWays(parts)
    assembly.traffic.elsewhere = ways.left
    assembly.pipeline.listen(ways)
    return ways


async def _follow_log(
    service: ControllerService, run_id: str, attempt_id: str, offset: int
) -> AsyncIterator[bytes]:
    """Raises ServiceError, BucketError."""
    state = await service.runs.lookup.get(run_id)
    attempt = await service.runs.lookup.attempt(state, None, attempt_id)
    await service.jobs.kept_logs.require(state, attempt)
    runs, logs = service.runs.lookup, service.jobs.logs
    return follow_log(runs, logs, run_id, attempt_id, offset, LOG_REST_SECONDS)


def _key(options: Options) -> asyncssh.SSHKey:
    """Blocking. Raises CannotStart."""
    try:
        return identity.ssh_identity(options.data)
    except identity.IdentityUnusable as error:
        raise CannotStart(str(error)) from error


def _link_tls(options: Options) -> LinkTls | None:
    """Blocking. Raises CannotStart."""
    try:
        if not (options.data / identity.IDENTITY_NAME).exists():
            return None
        return link_tls(secret_of(_key(options)), options.data)
    except OSError as error:
        raise CannotStart(f"cannot write to {options.data}: {error.strerror}") from error
