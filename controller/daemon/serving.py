"""Serves until it is stopped; among several controllers, carries connections until it leads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from aiohttp import web

from common.proxy.entry import Proxy
from controller.api.app import make_runner
from controller.api.http.leaving import Leaving
from controller.api.http.origins import Origins
from controller.api.machines.join import make_join_runner
from controller.daemon.boot import fingerprint, installation_of, tie, warn_of_open_keys
from controller.daemon.garbage import Garbage
from controller.daemon.gateways import make_proxy
from controller.daemon.hand_over import HandOver
from controller.daemon.lease import Leading, end
from controller.daemon.listening import (
    bound_socket,
    certificate_of,
    held_socket,
    listen,
    listen_for_nodes,
)
from controller.daemon.opening import Opened, open_parts
from controller.daemon.options import CannotStart, Options
from controller.daemon.stores import open_store
from controller.daemon.work import run
from controller.disk import Disk
from controller.proxy.sealed import SealedSessions
from controller.store import peers
from controller.store.errors import LeaseHeld, LeaseLost, StoreUnavailable
from controller.store.peers import Peers
from controller.tls import ServerCertificate

if TYPE_CHECKING:
    from controller.following import Wait
    from controller.forwarding.follower import Follower
    from controller.forwarding.follower_links import FollowerLinks
    from controller.relay import Relay

T = TypeVar("T")

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 2.0
SHARED_SHUTDOWN_SECONDS = 0.2
"""Seconds for the ends of streams, while the next leader waits."""
SHARED_ANSWER_SECONDS = 0.5
"""Seconds for answers."""
QUIET_SECONDS = 0.1
"""A request may be on its way on a connection that was just accepted, or is kept."""
TAKE_SECONDS = 2.0
"""Seconds for the TLS of connections that were just accepted."""


class _Stopped(Exception):
    """The controller was stopped before it served."""


async def serve(options: Options, ready: Callable[[str], None]) -> None:
    """Run the controller until SIGTERM or SIGINT. `ready` is called with the API's URL.

    Raises CannotStart, StoreError.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await asyncio.to_thread(warn_of_open_keys, options)
    async with contextlib.AsyncExitStack() as closing:
        full = await _hand_over(options, closing)
        if options.peers is not None:
            await _among_peers(options, options.peers, ready, stop, full)
            return
        certificate = await certificate_of(options, closing)
        if (listening := held_socket(options)) is not None:
            closing.callback(listening.close)
        with contextlib.suppress(_Stopped):
            async with _controller(options, certificate, stop, full, ready, listening) as work:
                await until_stopped(work, stop)


async def _hand_over(options: Options, closing: contextlib.AsyncExitStack) -> HandOver:
    def measured(free: int | None) -> None:
        if options.peers is not None:
            options.peers.free = free

    disk = Disk(options.data, measured)
    # Before the first try to lead.
    await disk.look()
    closing.push_async_callback(end, asyncio.create_task(disk.watch(), name="disk"))
    # Without a bucket for everything, another one would lead without the uploads and logs of here.
    return HandOver(disk, options.peers if options.bucket is not None else None)


async def until_stopped(work: asyncio.Task[T], *stops: asyncio.Event) -> None:
    """Return when one of `stops` is set, or when the work ends. Raises what the work does."""
    waits = [asyncio.create_task(stop.wait()) for stop in stops]
    done, _ = await asyncio.wait({work, *waits}, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if work in done:
        await work


async def _among_peers(
    options: Options,
    peers: Peers,
    ready: Callable[[str], None],
    stop: asyncio.Event,
    full: HandOver,
) -> None:
    """Carry connections to the leader until it is gone, then lead. Raises as `serve` does."""
    # A controller that is alone loads nothing of followers.
    from controller.daemon.followers import follower
    from controller.relay import Relay

    wait = await _first_look(options, peers, stop)
    async with contextlib.AsyncExitStack() as closing:
        # One for all its time: files that are broken when it is its turn keep it from nothing.
        certificate = await certificate_of(options, closing)
        listening = await bound_socket(options)
        closing.callback(listening.close)
        closing.push_async_callback(asyncio.to_thread, peers.leave)
        requests = await follower(options, certificate, closing)
        relay = Relay(requests=requests)
        closing.push_async_callback(relay.close)
        await relay.listen(listening)
        ready(peers.url)
        closing.callback((garbage := Garbage()).close)
        take_back = partial(relay.take_back, listening)
        while await wait.until_it_may_lead(relay):
            garbage.lead_begins()
            try:
                async with _controller(
                    options, certificate, stop, full, relay.hand_over, listening, take_back
                ) as work:
                    _note_begin(garbage)
                    await until_stopped(work, stop, full.is_due)
                    if requests is not None and stop.is_set():
                        requests.leave()
            except _Stopped:
                break
            except (LeaseLost, StoreUnavailable) as error:
                # All of this lead is closed by now, as when a full one hands over.
                log.error("%s", error)
                wait.note_end(error)
            except CannotStart as error:
                _note_failure(error, garbage)
                continue
            else:
                if not full.is_due.is_set():
                    break
            if stop.is_set():
                break
            garbage.lead_ended()
            if requests is None:
                # The first one began without keys.
                requests = await follower(options, certificate, closing)
                relay.serve_with(requests)
        if requests is not None:
            requests.leave()
        await wait.linger(relay, options.linger)
        await _give_away(relay, requests, listening)


def _note_begin(garbage: Garbage) -> None:
    log.info("this controller leads now")
    garbage.lead_began()


def _note_failure(error: CannotStart, garbage: Garbage) -> None:
    """Note that a try to lead failed. Raises the error, unless the same may succeed later."""
    # Another one was faster, or the leader is of a version that shows itself nowhere; or a leader
    # whose machine vanished still keeps the lease's row.
    if not isinstance(error.__cause__, LeaseHeld | LeaseLost | StoreUnavailable):
        raise error
    log.info("it can't lead yet: %s", error)
    garbage.lead_ended()


async def _first_look(options: Options, peers: Peers, stop: asyncio.Event) -> Wait:
    """Raises CannotStart, StoreError."""
    from controller.following import Wait

    peers.keys = await asyncio.to_thread(fingerprint, options)
    peers.installation_id = await asyncio.to_thread(installation_of, options)
    wait = Wait(peers, stop)
    await wait.begin()
    if peers.installation_id is not None:
        await asyncio.to_thread(tie, options, peers.installation_id)
    return wait


async def _give_away(relay: Relay, requests: Follower | None, listening: socket.socket) -> None:
    """Let the next leader have the connections that were accepted, and answer what has come."""
    relay.accept_no_more()
    listening.close()
    await relay.until_given_away(TAKE_SECONDS)
    if requests is not None:
        await requests.until_answered()


@contextlib.asynccontextmanager
async def _controller(
    options: Options,
    certificate: ServerCertificate | None,
    stop: asyncio.Event,
    full: HandOver,
    ready: Callable[[str], None],
    listening: socket.socket | None = None,
    take_back: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve within this block; yield the work, which ends only if it fails. `listening`: serve the
    API there; `take_back` listens there once it is not served any more. Raises _Stopped."""
    leading = Leading(math.inf if options.peers is None else peers.LEASE_SECONDS)
    ending, answering = SHUTDOWN_SECONDS, SHUTDOWN_SECONDS
    if options.peers is not None:
        ending, answering = SHARED_SHUTDOWN_SECONDS, SHARED_ANSWER_SECONDS
    leaving = Leaving()
    async with contextlib.AsyncExitStack() as closing:
        # The stack closes in reverse: first what listens, last the stores that all others use.
        store = await open_store(options, closing)
        leading.renewed(leading.now())
        opened = await _unless_stopped(
            open_parts(options, store, leading, closing, full.disk), stop
        )
        work = asyncio.create_task(run(options, opened, leading), name="controller")
        closing.push_async_callback(end, work)
        watch = asyncio.create_task(full.watch(store), name="hand-over")
        closing.push_async_callback(end, watch)
        links = await _links_of_followers(options, opened, leading)
        sealed = await _sealed_sessions(options)
        gate, dashboard = opened.service.accounts.gate, opened.dashboard
        proxy = make_proxy(options, opened.assembly, gate, dashboard, sealed)
        closing.callback(proxy.close)
        api = make_runner(
            opened.service,
            shutdown_timeout=ending,
            proxy=proxy,
            origins=Origins(options.allowed_origins),
            mounts=(opened.dashboard.mount, *(one.mount for one in links)),
            lead=None if options.peers is None else leading,
            first=[one.middleware for one in links],
            leaving=leaving,
        )
        for one in links:
            one.serve_with(api)
        closing.push_async_callback(api.cleanup)
        if opened.join is not None:
            now = asyncio.get_running_loop().time
            registrations = opened.service.machines.registrations
            joining = make_join_runner(registrations, now, shutdown_timeout=ending)
            closing.push_async_callback(joining.cleanup)
            await listen_for_nodes(joining, opened.join)
        ready(await listen(api, options, certificate, listening))
        answer_all = partial(_answer_all, api, leaving, answering)
        if take_back is None:
            closing.push_async_callback(answer_all)
        else:
            closing.push_async_callback(_leave_followers, links, proxy, answer_all)
            closing.push_async_callback(_leave_address, leading, leaving, api, take_back)
        yield work


async def _sealed_sessions(options: Options) -> SealedSessions | None:
    """Return the browsers' sessions with services that followers know too; None: it is alone, and
    keeps them in memory. Raises CannotStart."""
    if options.peers is None:
        return None
    from controller.daemon.followers import sealed_sessions

    return await sealed_sessions(options)


async def _links_of_followers(
    options: Options, opened: Opened, leading: Leading
) -> tuple[FollowerLinks, ...]:
    """Return what takes the links of followers, if there can be any. Raises CannotStart."""
    if options.peers is None:
        return ()
    from controller.daemon.followers import links_of_followers

    return await links_of_followers(options, opened.service, opened.assembly, leading)


async def _unless_stopped(opening: Coroutine[None, None, Opened], stop: asyncio.Event) -> Opened:
    """Raises _Stopped as soon as `stop` is set: a bucket may be silent, and a history long, while
    this controller holds the lease that another one waits for."""
    task = asyncio.create_task(opening)
    try:
        await until_stopped(task, stop)
        if not task.done():
            raise _Stopped
        return task.result()
    finally:
        task.cancel()
        # Not `await` itself: an error of the task is of no interest here, and a cancel would look
        # like ours.
        await asyncio.wait({task})


async def _answer_all(api: web.AppRunner, leaving: Leaving, seconds: float) -> None:
    """Take no new connection, and answer what has come."""
    for site in api.sites:
        await site.stop()
    leaving.begin()
    await leaving.until_answered(seconds, QUIET_SECONDS)


async def _leave_address(
    leading: Leading,
    leaving: Leaving,
    api: web.AppRunner,
    take_back: Callable[[], Awaitable[None]],
) -> None:
    """Leave what comes from now on to the next leader, and go on with what has begun."""
    for site in api.sites:
        await site.stop()
    await take_back()
    # What is held here does not wait for this lease any more. That of followers meets links that
    # leave, and goes to the next leader.
    leading.end()
    leaving.begin()


async def _leave_followers(
    links: Sequence[FollowerLinks],
    proxy: Proxy,
    answer_all: Callable[[], Coroutine[None, None, None]],
) -> None:
    """Let followers take their requests to the next leader. What has begun is answered meanwhile:
    the next leader waits for both."""
    async with asyncio.TaskGroup() as group:
        for one in links:
            group.create_task(one.leave())
        # When followers are told that it leaves: they take what waits to the next leader.
        await asyncio.sleep(0)
        proxy.leave()
        await answer_all()
