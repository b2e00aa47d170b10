"""Opens the stores, on disk and in buckets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from controller.blob_bucket import BlobBucket
from controller.blobs import BlobStore
from controller.clock import system_chance
from controller.daemon.boot import installation_of
from controller.daemon.options import CannotStart, Options
from controller.logs.parts import LogBucket
from controller.logs.store import LogStore
from controller.metric_bucket import MetricBucket
from controller.metric_history import MetricHistory
from controller.outputs.bucket import BucketError
from controller.outputs.bucket_threads import BucketThreads
from controller.outputs.own_bucket import BucketOfAnother, OwnBucket, SharedBucket
from controller.outputs.store import LargeOutputs, OutputStore
from controller.outputs.uploads import OutputUploads
from controller.service import Stores
from controller.shipping.shipper import Shipper
from controller.store import peers
from controller.store.base import Boot, Store
from controller.store.lease import LEASE_SECONDS
from controller.store.sessions import Patience
from controller.store.sql import SqlStore
from controller.store.sqlite import SqliteDatabase

log = logging.getLogger(__name__)

METRICS_NAME = "metrics"
BUCKET_SECONDS = 3.0
"""A bucket that does not answer so long holds up no leader."""


async def open_store(options: Options, closing: contextlib.AsyncExitStack) -> Store:
    """Return the database's store, which `closing` closes. Raises CannotStart."""
    store = SqlStore(
        options.database or SqliteDatabase(options.data),
        lease_seconds=LEASE_SECONDS if options.peers is None else peers.LEASE_SECONDS,
        installation_id=await asyncio.to_thread(installation_of, options),
        patience=None if options.database is None else Patience(),
    )
    closing.push_async_callback(store.close)
    return store


async def own_bucket(
    options: Options, installation_id: str, closing: contextlib.AsyncExitStack
) -> OwnBucket | None:
    """Return the bucket for everything, if there is one. Raises CannotStart, also for another
    bucket that is named and that another installation has for itself."""
    await _verify_shared(options, installation_id)
    if options.bucket is None:
        return None
    own = OwnBucket(options.bucket, installation_id)
    closing.callback(own.close)
    await _verified("--bucket", own.ask(own.verify))
    return own


async def _verify_shared(options: Options, installation_id: str) -> None:
    """Raises CannotStart."""
    named = {"--logs-bucket": options.logs_bucket, "--outputs-bucket": options.outputs_bucket}
    shared = {
        option: SharedBucket(bucket, installation_id)
        for option, bucket in named.items()
        if bucket is not None and bucket != options.bucket
    }
    if not shared:
        return
    with contextlib.closing(BucketThreads(len(shared), "owners")) as threads:
        # At once: a start waits for a silent storage once.
        asked = (_verified(option, threads.ask(one.verify)) for option, one in shared.items())
        for result in await asyncio.gather(*asked, return_exceptions=True):
            if result is not None:
                raise result


async def _verified(option: str, verifying: Awaitable[None]) -> None:
    """Raises CannotStart."""
    try:
        # obstore tries again for minutes by default, and a start must say what is wrong.
        async with asyncio.timeout(BUCKET_SECONDS):
            await verifying
    except BucketOfAnother as error:
        raise CannotStart(f"{option}: {error}") from error
    except (BucketError, TimeoutError) as error:
        # Its owner is looked for again before anything is read or written there.
        why = str(error) or f"no answer within {BUCKET_SECONDS:g} s"
        log.warning("the bucket of %s cannot be used, and what goes there waits: %s", option, why)


def open_stores(
    options: Options,
    store: Store,
    own: OwnBucket | None,
    installation_id: str,
    closing: contextlib.AsyncExitStack,
    shipper: Shipper | None = None,
) -> Stores:
    """Return all stores, which `closing` closes. `shipper` hears of the frames of logs."""
    data = options.data
    bucket = _log_bucket(options, own, installation_id)
    if shipper is None:
        logs = LogStore(data / "logs", bucket)
    else:
        logs = LogStore(data / "logs", bucket, shipper.stored)
    stores = Stores(
        store=store,
        logs=logs,
        outputs=OutputStore(
            data / "outputs",
            options.max_outputs,
            own=own,
            large=_large_outputs(options),
            verify_large=_verify_large(options, installation_id),
        ),
        blobs=BlobStore(
            data / "blobs",
            max_bytes=options.max_upload,
            max_of_user=options.max_uploads_of_user,
            bucket=None if own is None else BlobBucket(own),
        ),
    )
    closing.push_async_callback(asyncio.to_thread, stores.outputs.close)
    closing.push_async_callback(asyncio.to_thread, stores.logs.close)
    return stores


def _large_outputs(options: Options) -> LargeOutputs | None:
    bucket = options.outputs_bucket
    above = options.outputs_bucket_above
    return None if bucket is None else LargeOutputs(bucket=bucket, above=above)


def _verify_large(options: Options, installation_id: str) -> Callable[[], None]:
    bucket = options.outputs_bucket
    # It may have been away at the start, and be another installation's.
    return (lambda: None) if bucket is None else SharedBucket(bucket, installation_id).verify


def _log_bucket(options: Options, own: OwnBucket | None, installation_id: str) -> LogBucket | None:
    of_logs = options.logs_bucket
    if of_logs is None:
        return None
    if own is not None and of_logs == options.bucket:
        # It may have been away at the start, and be another installation's.
        return LogBucket(of_logs, installation_id, own.verify)
    return LogBucket(of_logs, installation_id, SharedBucket(of_logs, installation_id).verify)


def followed_bucket(options: Options, installation_id: str) -> LogBucket | None:
    """Return the bucket of logs for a controller that does not lead, and only reads there."""
    of_logs = options.logs_bucket
    if of_logs is None:
        return None
    if of_logs == options.bucket:
        return LogBucket(of_logs, installation_id, OwnBucket(of_logs, installation_id).require_own)
    return LogBucket(of_logs, installation_id)


def metric_bucket(
    options: Options, history: MetricHistory, own: OwnBucket | None, boot: Boot
) -> MetricBucket | None:
    if own is None:
        return None
    return MetricBucket(own, history, options.data / METRICS_NAME, f"{boot.token:x}")


def uploads_of(options: Options, outputs: OutputStore) -> OutputUploads | None:
    target = options.outputs_bucket or options.bucket
    if target is None:
        return None
    # Those from before there was an own bucket; later ones are there when they count as collected.
    above = options.outputs_bucket_above if options.bucket is None else -1
    return OutputUploads(outputs, target, above, system_chance().jitter)
