"""The work of the controller: everything that goes on until it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from controller.assembly import Assembly
from controller.clock import SystemClock
from controller.daemon.lease import Leading, keep_lease, renewal_seconds
from controller.daemon.opening import Opened
from controller.daemon.options import Options
from controller.daemon.stores import uploads_of
from controller.lifecycle.model import RunState
from controller.retention import Retention
from controller.service import Stores
from controller.service.jobs.metric_sampler import MetricSampler
from controller.service.machines.costs import CostService
from controller.store.errors import LeaseLost, StoreError, StoreUnavailable

log = logging.getLogger(__name__)

TIDYING_SECONDS = 3600.0


async def run(options: Options, opened: Opened, leading: Leading) -> None:
    stores, service = opened.stores, opened.service
    pipeline, clock = opened.assembly.pipeline, SystemClock()

    def live_runs() -> tuple[RunState, ...]:
        return tuple(pipeline.runs.values())

    retention = Retention(stores.store, stores.logs, stores.outputs, clock, options.keep, live_runs)
    sampler = MetricSampler(
        service.jobs.metrics,
        service.jobs.metric_history,
        clock,
        live_runs,
        bucket=opened.metric_bucket,
    )
    uploads = uploads_of(options, stores.outputs)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(opened.assembly.run(), name="assembly")
            every = renewal_seconds(options)
            lease = keep_lease(stores.store, every, leading)
            group.create_task(_until_lost(lease, opened.assembly), name="lease")
            group.create_task(_tidy_blobs(opened.assembly, stores), name="blobs")
            group.create_task(retention.run(), name="retention")
            group.create_task(_settle_costs(service.machines.costs), name="costs")
            group.create_task(sampler.run(), name="metrics")
            group.create_task(stores.logs.join_ended(), name="logs")
            if opened.shipper is not None:
                group.create_task(opened.shipper.run(stores.logs.read), name="copies")
            if uploads is not None:
                group.create_task(uploads.run(), name="outputs")
    except BaseExceptionGroup as errors:
        # A TaskGroup wraps its error even if it is a single one, and callers name what they catch.
        raise errors.exceptions[0] from None


async def _until_lost(lease: Coroutine[None, None, None], assembly: Assembly) -> None:
    """Raises LeaseLost."""
    try:
        await lease
    except LeaseLost as error:
        # The end of this task cancels all others. Clients are told before that nothing was done.
        await assembly.pipeline.lost(error)
        raise


async def _tidy_blobs(assembly: Assembly, stores: Stores) -> None:
    """Raises LeaseLost."""

    def needed() -> set[str]:
        return {digest for state in assembly.pipeline.runs.values() for digest in state.uploads}

    while True:
        try:
            await stores.blobs.sweep(needed, stores.store.renew_lease)
        # Tidying is repeated: a disk or database that is away for now is no reason to stop.
        except (OSError, StoreUnavailable) as error:
            log.warning("expired uploads could not be removed: %s", error)
        await asyncio.sleep(TIDYING_SECONDS)


async def _settle_costs(costs: CostService) -> None:
    """Raises LeaseLost."""
    while True:
        try:
            await costs.settle()
        # It is a StoreError too. Whoever leads no more must not go on.
        except LeaseLost:
            raise
        except StoreError as error:
            log.warning("what machines have cost could not be summed up: %s", error)
        await asyncio.sleep(TIDYING_SECONDS)
