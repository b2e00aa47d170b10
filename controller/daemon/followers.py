"""What a controller among several opens for followers: as a leader, and as one of them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from functools import partial

from controller import identity
from controller.clock import SystemClock
from controller.daemon.options import CannotStart, Options
from controller.daemon.stores import followed_bucket
from controller.forwarding.credentials import LinkTls, link_tls
from controller.forwarding.final_logs import FOLDER_NAME, FinalLogs
from controller.forwarding.follower import Follower
from controller.forwarding.follower_links import FollowerLinks
from controller.forwarding.log_reads import LogReads
from controller.forwarding.reads import Reads
from controller.pipelines.performers.cluster import secret_of
from controller.store.reading import StoreReader
from controller.tls import ServerCertificate


async def follower(
    options: Options, certificate: ServerCertificate | None, closing: contextlib.AsyncExitStack
) -> Follower | None:
    """Return what serves while this controller waits, which `closing` closes; None: it has no keys
    yet, and carries connections byte by byte. Raises CannotStart."""
    tls = await asyncio.to_thread(_link_tls, options)
    if tls is None:
        return None
    context = None if certificate is None else certificate.context
    reads = None
    if options.database is not None:
        store = StoreReader(options.database.reader)
        closing.push_async_callback(store.close)
        reads = await _reads(options, store, closing)
    opened = Follower(tls.follower, context, options.proxy.domain, reads)
    closing.push_async_callback(opened.close)
    await opened.start()
    return opened


async def _reads(options: Options, store: StoreReader, closing: contextlib.AsyncExitStack) -> Reads:
    if options.logs_bucket is None or options.peers is None:
        return Reads(store, SystemClock())
    # Controllers may share their data folder; each has a URL of its own.
    own = hashlib.sha256(options.peers.url.encode()).hexdigest()[:16]
    folder = options.data / FOLDER_NAME / own
    logs = FinalLogs(folder, partial(followed_bucket, options))
    closing.push_async_callback(logs.close)
    await logs.start()
    return LogReads(store, SystemClock(), logs)


async def links_of_followers(options: Options) -> tuple[FollowerLinks, ...]:
    """Return what takes the links of followers, if it has keys. Raises CannotStart."""
    tls = await asyncio.to_thread(_link_tls, options)
    return () if tls is None else (FollowerLinks(tls.leader),)


def _link_tls(options: Options) -> LinkTls | None:
    """Blocking. Raises CannotStart."""
    try:
        if not (options.data / identity.IDENTITY_NAME).exists():
            return None
        return link_tls(secret_of(identity.ssh_identity(options.data)), options.data)
    except identity.IdentityUnusable as error:
        raise CannotStart(str(error)) from error
    except OSError as error:
        raise CannotStart(f"cannot write to {options.data}: {error.strerror}") from error
