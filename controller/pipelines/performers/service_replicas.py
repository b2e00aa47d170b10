"""The effects of a service's replica: its probes, its gateway, and its last requests.

`ReplicaProber` tries the probes as long as the replica runs; how one is tried is a `TryProbe`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from msgspec.structs import replace

from controller.lifecycle import reports
from controller.lifecycle.effects import EffectKind
from controller.lifecycle.model import Attempt
from controller.lifecycle.services.readiness import is_over
from controller.links.base import NodeConnection
from controller.links.gateway_keys import put_keys
from controller.pipelines import to_node
from controller.pipelines.effects import Performer
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext
from controller.traffic.routes import ReplicaRoute, replica_route
from controller.traffic.statistics import Traffic
from fairlead.model.service import Probe
from fairlead.wire.shim import Fence
from runner.client import RunnerError
from shim.client import ShimError

FIRST_INTERVAL_SECONDS = 1.0
"""The longest pause between two tries before a probe has passed often enough."""
MAX_MESSAGE = 500
RENEWED_SECONDS = 10.0
"""The shortest pause between two commits that only change why a probe fails: a replica may answer
with another sentence each time."""


class TryProbe(Protocol):
    """Tries one probe once."""

    async def __call__(
        self, context: AttemptContext, connection: NodeConnection, probe: Probe
    ) -> str | None:
        """Return why it failed, as a sentence; None: it passed. The caller keeps its timeout.

        Raises RunnerUnavailable, LinkError when the node cannot be reached: that is no result.
        """


async def port_accepts(
    context: AttemptContext, connection: NodeConnection, probe: Probe
) -> str | None:
    """Try whether the port of the replica accepts a connection."""
    assert context.job.spec.serves is not None
    port = context.job.spec.serves.port
    try:
        stream = await connection.runner(to_node.runner_socket(context)).connect_port(port)
    except RunnerError as error:
        return f"port {port}: {error.message}"
    # The connection alone is the answer: a server that waits for a request must not wait for this
    # one.
    stream.writer.close()
    return None


class ReplicaProber:
    """Try each probe at its interval, and report what is new."""

    def __init__(self, pipeline: RunPipeline, try_probe: TryProbe = port_accepts) -> None:
        self._pipeline = pipeline
        self._try = try_probe

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        serves = context.job.spec.serves
        if serves is None:
            return
        try:
            async with asyncio.TaskGroup() as group:
                for number, probe in enumerate(serves.probes):
                    group.create_task(self._keep_trying(context, connection, number, probe))
        except* Exception as errors:
            # EffectRunner knows single errors; it would log an ExceptionGroup as a bug.
            raise errors.exceptions[0] from None

    async def _keep_trying(
        self, context: AttemptContext, connection: NodeConnection, number: int, probe: Probe
    ) -> None:
        time = asyncio.get_running_loop().time
        renew_at = time()
        while True:
            why = await self._try_once(context, connection, probe)
            attempt = to_node.current(self._pipeline.known, context)
            if attempt is None:
                return
            seen = reports.ProbeSeen(
                run_id=context.state.run.id,
                attempt_id=attempt.id,
                probe=number,
                passed=why is None,
                message=None if why is None else why[:MAX_MESSAGE],
            )
            renews = _fails_otherwise(attempt, seen) and time() >= renew_at
            if renews or _changes_what_is_known(attempt, number, probe, passed=seen.passed):
                renew_at = time() + (RENEWED_SECONDS if renews else 0.0)
                self._pipeline.post(seen)
            if attempt.serving.probes and is_over(probe, attempt.serving.probes[number]):
                return
            pause = probe.interval
            if not attempt.serving.ready:
                pause = min(pause, FIRST_INTERVAL_SECONDS)
            await asyncio.sleep(pause)

    async def _try_once(
        self, context: AttemptContext, connection: NodeConnection, probe: Probe
    ) -> str | None:
        try:
            async with asyncio.timeout(probe.timeout):
                return await self._try(context, connection, probe)
        # A frozen job takes connections, by its kernel, and never answers.
        except TimeoutError:
            return f"no answer within {probe.timeout:g} s"


def _changes_what_is_known(attempt: Attempt, number: int, probe: Probe, *, passed: bool) -> bool:
    """Return whether the result changes what is known: most do not, and cost no commit."""
    if not attempt.serving.probes:
        return True
    known = attempt.serving.probes[number]
    return known.passes is not passed or (passed and known.in_a_row < probe.ready_after)


def _fails_otherwise(attempt: Attempt, seen: reports.ProbeSeen) -> bool:
    """Return whether the probe goes on failing for another reason: users read why, also as the
    reason of a rollback."""
    if seen.passed or not attempt.serving.probes:
        return False
    known = attempt.serving.probes[seen.probe]
    return not known.passes and known.message != seen.message


class Gateways(Protocol):
    """The gateways, as replicas need them (`controller.gateways.manager`)."""

    def keys(self) -> tuple[str, ...]:
        """Return the public keys by which gateways log in at nodes."""

    async def register(self, run_id: str, gateway: str, replica: ReplicaRoute) -> None:
        """Return once the gateway sends requests to this replica. Raises NotRegistered."""

    async def left(self, run_id: str, gateway: str, attempt_id: str) -> None:
        """Return once the gateway sends no more requests there and has none in flight."""


class NotRegistered(Exception):
    """The gateway does not send requests to the replica; the message says why."""


class ReplicaRegistrar:
    """Expose the replica's port to gateways on its node, and have its gateway confirm it."""

    def __init__(self, pipeline: RunPipeline, gateways: Gateways, fence: Fence) -> None:
        self._pipeline = pipeline
        self._gateways = gateways
        self._fence = fence

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        run, attempt, service = context.state.run, context.attempt, context.state.run.service
        if service is None or service.gateway is None or context.job.spec.serves is None:
            return
        try:
            await put_keys(connection.shim, self._gateways.keys)
            exposed = await connection.shim.expose(
                attempt.id,
                context.job.spec.serves.port,
                run_id=run.id,
                fence=self._fence,
                incarnation=context.run_incarnation,
            )
            replica = replace(replica_route(context.job, attempt), exposed_socket=exposed.socket)
            await self._gateways.register(run.id, service.gateway, replica)
        except (NotRegistered, ShimError) as error:
            why = error.message if isinstance(error, ShimError) else str(error)
            self._pipeline.post(
                reports.RegistrationFailed(
                    run_id=run.id, attempt_id=attempt.id, why=why[:MAX_MESSAGE]
                )
            )
            raise to_node.RetryLater(why) from error
        self._pipeline.post(
            reports.ReplicaRegistered(run_id=run.id, attempt_id=attempt.id, socket=exposed.socket)
        )


class ReplicaDrainer:
    """Wait until no request is in flight at the replica, here or at its gateway."""

    def __init__(self, pipeline: RunPipeline, traffic: Traffic, gateways: Gateways) -> None:
        self._pipeline = pipeline
        self._traffic = traffic
        self._gateways = gateways

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None:
        service = context.state.run.service
        if service is not None and service.gateway is not None:
            await self._gateways.left(context.state.run.id, service.gateway, context.attempt.id)
        await self._traffic.idle(context.attempt.id)
        self._pipeline.post(
            reports.ReplicaDrained(run_id=context.state.run.id, attempt_id=context.attempt.id)
        )


def performers(
    pipeline: RunPipeline,
    traffic: Traffic,
    gateways: Gateways,
    fence: Fence,
    try_probe: TryProbe = port_accepts,
) -> dict[EffectKind, Performer]:
    return {
        EffectKind.REGISTER_REPLICA: ReplicaRegistrar(pipeline, gateways, fence),
        EffectKind.PROBE_REPLICA: ReplicaProber(pipeline, try_probe),
        EffectKind.DRAIN_REPLICA: ReplicaDrainer(pipeline, traffic, gateways),
    }
