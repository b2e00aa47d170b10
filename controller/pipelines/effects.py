"""EffectRunner makes the outside match the committed state, attempt by attempt.

After each commit it asks `lifecycle.effects.wanted`. It starts the effects that are wanted and not
under way, and stops those that are no longer wanted. A performer that has no connection is repeated
when there is one; its reports go into the next turn. Nothing here decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from common.links.errors import LinkError
from controller.aio import Backoff, Flag, Slots
from controller.clock import Chance, Clock
from controller.lifecycle.effects import Effect, EffectKind, releases, wanted
from controller.lifecycle.model import RunState
from controller.links.base import NodeConnection
from controller.logs.store import LogStore
from controller.pipelines import to_node
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import AttemptContext, RetryLater
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES
from runner.client import RunnerUnavailable
from shim.client import ShimUnavailable

log = logging.getLogger(__name__)
FIRST_WAIT_SECONDS = 0.02
MAX_WAIT_SECONDS = 2.0
REFUSALS_UNTOLD = 10
"""Refusals before the first log line. A node often needs a few seconds, but the cause of a task
that never ends must be in the log."""
BEGINNINGS = frozenset(
    {
        EffectKind.SUBMIT_TASK,
        EffectKind.START_JOB,
        EffectKind.FOLLOW_RUNNER,
        EffectKind.COLLECT_LOGS,
    }
)
"""Thousands of these are wanted at once when thousands of jobs are submitted or nodes come back.
They share the event loop with decisions, answers and effects that end jobs, so only a few run at a
time."""
BEGUN_AT_ONCE = 16
LENT_SECONDS = 0.05
"""Seconds after which a slot is free again, so that a slow node delays no other."""
LASTING = frozenset({EffectKind.FOLLOW_RUNNER, EffectKind.COLLECT_LOGS})
LENT_TO_LASTING_SECONDS = 0.01
"""These effects last as long as their jobs; only their first request costs time."""
Key = tuple[str, EffectKind]


class Connections(Protocol):
    """Gives the connections to nodes."""

    async def connection(self, node_id: str) -> NodeConnection:
        """Return the live connection of this node; waits for it as long as necessary."""


class Performer(Protocol):
    """Performs one kind of effect. It must be repeatable.

    It returns when the node has applied it, or when what it follows has ended, and has then posted
    what it saw.
    """

    async def __call__(self, context: AttemptContext, connection: NodeConnection) -> None: ...


class EffectRunner:
    """Starts, repeats and stops the effects of all attempts."""

    def __init__(
        self,
        pipeline: RunPipeline,
        nodes: Connections,
        logs: LogStore,
        performers: Mapping[EffectKind, Performer],
        clock: Clock,
        chance: Chance,
    ) -> None:
        self._pipeline = pipeline
        self._nodes = nodes
        self._logs = logs
        self._performers = performers
        self._clock = clock
        self._chance = chance
        self._slots = Slots(BEGUN_AT_ONCE)
        self._under_way: dict[Key, asyncio.Task[None]] = {}
        self._kicks: dict[Key, Flag] = {}
        self._done: set[Key] = set()
        self._keys_of: dict[str, set[Key]] = {}

    def committed(self, touched: Sequence[RunState]) -> None:
        """Match the effects of these runs with their committed state."""
        for state in touched:
            self._match_run(state)

    def _match_run(self, state: RunState) -> None:
        to_release = releases(state)
        for job in state.jobs:
            for attempt in job.attempts:
                self._match(AttemptContext(state, job, attempt), to_release.get(attempt.id))

    def repeat(self, node_id: str) -> None:
        """Start every effect that is still wanted on a node again, because the node was reached
        again."""
        for state in self._pipeline.runs_on(node_id):
            for job in state.jobs:
                for attempt in job.attempts:
                    if attempt.node_id == node_id:
                        self._done -= self._keys_of.get(attempt.id, set())
            self._match_run(state)

    def remembers(self, attempt_id: str) -> bool:
        """Return whether any effect of the attempt is under way or known to be done."""
        return attempt_id in self._keys_of

    async def close(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- matching ---------------------------------------------------------------------------

    def _match(self, context: AttemptContext, to_release: Effect | None) -> None:
        attempt = context.attempt
        known = self._keys_of.get(attempt.id)
        if attempt.status in FINAL_ATTEMPT_STATUSES:
            self._logs.finish(attempt.id)
            effects: tuple[Effect, ...] = () if to_release is None else (to_release,)
        else:
            effects = wanted(context.state, attempt, self._clock.now())
        keys = {(attempt.id, effect.kind) for effect in effects}
        # A set of strings is ordered differently in each Python process; simulations must be equal.
        for key in sorted((known or set()) - keys):
            self._stop(key)
        for effect in effects:
            key = (attempt.id, effect.kind)
            if key in self._under_way:
                # This commit may be what a refused try waits for: it tries again at once.
                self._kicks[key].set()
            elif key not in self._done:
                self._start(effect)

    def _start(self, effect: Effect) -> None:
        key = (effect.attempt_id, effect.kind)
        self._keys_of.setdefault(effect.attempt_id, set()).add(key)
        kick = self._kicks[key] = Flag()
        task = asyncio.create_task(self._keep(effect, kick), name=f"{key[1].value}-{key[0]}")
        self._under_way[key] = task
        task.add_done_callback(lambda _: self._ended(key, task))

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        # It was stopped, and another one may have been started for the same key.
        if self._under_way.get(key) is not task:
            return
        del self._under_way[key]
        del self._kicks[key]
        # Until the node is reached again: its shim may have been restarted since.
        if not task.cancelled():
            self._done.add(key)

    def _stop(self, key: Key) -> None:
        self._done.discard(key)
        self._kicks.pop(key, None)
        task = self._under_way.pop(key, None)
        if task is not None:
            # A performer that is in the middle of a request may have done it or not: its effect is
            # derived again, and can be repeated.
            task.cancel()
        keys = self._keys_of[key[0]]
        keys.discard(key)
        if not keys:
            del self._keys_of[key[0]]

    # -- performing -------------------------------------------------------------------------

    async def _keep(self, effect: Effect, kick: Flag) -> None:
        backoff = Backoff(FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS, self._chance.jitter)
        perform = self._performers[effect.kind]
        refusals, logged = 0, ""
        while True:
            # Asked for anew with each try: the connection of the last one may be the reason for it.
            connection = await self._nodes.connection(effect.node_id)
            try:
                async with self._slot(effect.kind):
                    # Read inside the slot: while it waited, a commit may have ended what it was
                    # started for.
                    state = self._pipeline.known.get(effect.run_id)
                    context = None if state is None else to_node.find(state, effect.attempt_id)
                    if context is not None:
                        await perform(context, connection)
                return
            # The session of the node notices that too, and says it to users.
            except (ShimUnavailable, RunnerUnavailable, LinkError) as error:
                log.debug("%s of %s: %s", effect.kind, effect.attempt_id, error)
            except RetryLater as error:
                refusals += 1
                if refusals >= REFUSALS_UNTOLD and str(error) != logged:
                    logged = str(error)
                    log.warning(
                        "%s of attempt %s is refused and will be tried again: %s",
                        effect.kind,
                        effect.attempt_id,
                        error,
                    )
            # The controller's own disk, such as a full one: the effect goes on once there is room.
            except OSError as error:
                # Once: it is tried several times a second, for each job that prints.
                if str(error) != logged:
                    logged = str(error)
                    log.error(
                        "%s of attempt %s waits for this controller's disk (--data): %s",
                        effect.kind,
                        effect.attempt_id,
                        error,
                    )
            # A bug must not end the effect: until the next reconnect nothing would start it again.
            except Exception:
                log.exception("%s of attempt %s failed", effect.kind, effect.attempt_id)
            await backoff.wait(kick)

    def _slot(self, kind: EffectKind) -> AbstractAsyncContextManager[object]:
        if kind not in BEGINNINGS:
            return contextlib.nullcontext()
        return self._slots.slot(LENT_TO_LASTING_SECONDS if kind in LASTING else LENT_SECONDS)
