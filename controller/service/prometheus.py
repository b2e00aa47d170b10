"""The controller's own figures for Prometheus: what lives and waits, and how long things took.

What is there now is counted when it is asked for. How long things took is observed at each commit,
from the moment when this controller started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as Count
from prometheus_client.core import GaugeMetricFamily, Metric

from controller import __version__
from controller.clock import Clock
from controller.lifecycle.model import Attempt, Band, Job, RunState
from controller.lifecycle.services.readiness import is_registered
from controller.logs.store import LogStore
from controller.outputs.store import OutputStore
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.machines.rented import LIVE_STATUSES, status_of
from controller.service.machines.use import NodeUse, node_uses
from fairlead.model.statuses import AttemptStatus, NodeStatus, RunStatus

_WAITS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 86400.0)
_PASSES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class ControllerFigures:
    """Listens to turns; `page` is what Prometheus reads, with `more` families of others."""

    def __init__(
        self,
        pipeline: RunPipeline,
        clock: Clock,
        outputs: OutputStore,
        logs: LogStore,
        more: Iterable[Callable[[], Iterable[Metric]]] = (),
    ) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._outputs = outputs
        self._logs = logs
        self._since = clock.now()
        self._jobs: dict[str, tuple[Job, ...]] = {}
        registry = self._registry = CollectorRegistry()
        self._queued = Histogram(
            "fairlead_attempt_queue_seconds",
            "From the submission of an attempt to its allocation.",
            ("band",),
            registry=registry,
            buckets=_WAITS,
        )
        self._started = Histogram(
            "fairlead_attempt_start_seconds",
            "From the allocation of an attempt to the start of its commands.",
            registry=registry,
            buckets=_WAITS,
        )
        self._ended = Count(
            "fairlead_attempts_ended", "Attempts by their end.", ("reason",), registry=registry
        )
        self._passes = Histogram(
            "fairlead_scheduler_pass_seconds",
            "One search of the scheduler over all that waits.",
            registry=registry,
            buckets=_PASSES,
        )
        for families in (self._families, *more):
            registry.register(_WhenAsked(families))
        pipeline.listen(self)
        pipeline.observe_passes(self._passes.observe)

    def page(self) -> bytes:
        """Return the figures in the text format of Prometheus."""
        return generate_latest(self._registry)

    def committed(self, touched: Sequence[RunState]) -> None:
        for state in touched:
            before = self._jobs.get(state.run.id, ())
            for number, job in enumerate(state.jobs):
                old = before[number] if number < len(before) else None
                if old is not job:
                    self._observe(state, old, job)
            if state.run.finished_at is None:
                self._jobs[state.run.id] = state.jobs
            else:
                self._jobs.pop(state.run.id, None)

    def _observe(self, state: RunState, old: Job | None, job: Job) -> None:
        known = {} if old is None else {attempt.id: attempt for attempt in old.attempts[-2:]}
        for attempt in job.attempts[-2:]:
            before = known.get(attempt.id)
            if attempt is before:
                continue
            if self._is_new(attempt, before, "provisioned_at"):
                assert attempt.provisioned_at is not None
                waited = attempt.provisioned_at - attempt.submitted_at
                # Never negative, though the clock may have been set back in between.
                self._queued.labels(state.run.policy.band).observe(max(0.0, waited))
            if self._is_new(attempt, before, "running_at") and attempt.provisioned_at is not None:
                assert attempt.running_at is not None
                self._started.observe(max(0.0, attempt.running_at - attempt.provisioned_at))
            if self._is_new(attempt, before, "finished_at"):
                self._ended.labels(attempt.reason or "unknown").inc()

    def _is_new(self, attempt: Attempt, before: Attempt | None, moment: str) -> bool:
        at: float | None = getattr(attempt, moment)
        # What happened earlier was counted by the life of the controller before this one.
        if at is None or at < self._since:
            return False
        return before is None or getattr(before, moment) is None

    def _families(self) -> Iterable[Metric]:
        version = GaugeMetricFamily("fairlead_controller", "Its version", labels=["version"])
        version.add_metric([__version__], 1)
        yield version
        yield from self._of_runs(self._clock.now())
        yield from self._of_services()
        yield from self._of_nodes()
        yield from self._of_machines(self._clock.now())
        yield from self._of_outputs()

    def _of_outputs(self) -> Iterable[Metric]:
        waiting = self._outputs.waiting
        count = "Outputs that wait on the controller's disk for their bucket"
        yield GaugeMetricFamily("fairlead_outputs_waiting", count, waiting.count)
        size = "Bytes of outputs that wait on the controller's disk for their bucket"
        yield GaugeMetricFamily("fairlead_outputs_waiting_bytes", size, waiting.size)
        log = "Bytes of logs that wait for their bucket; nodes keep them until they are there"
        yield GaugeMetricFamily("fairlead_logs_waiting_bytes", log, self._logs.waiting)
        refused = "Logs of live attempts whose bucket failed when it was last asked"
        yield GaugeMetricFamily("fairlead_logs_refused", refused, self._logs.refused)

    def _of_services(self) -> Iterable[Metric]:
        replicas = GaugeMetricFamily(
            "fairlead_service_replicas",
            "Replicas of live services: how many are wanted, and how many get requests",
            labels=["service", "group", "state"],
        )
        for state in self._pipeline.runs.values():
            ready = Counter(job.group for job in state.jobs if is_registered(job))
            for scale in state.run.scales:
                labels = [state.run.name, scale.group]
                replicas.add_metric([*labels, "wanted"], scale.wanted)
                replicas.add_metric([*labels, "ready"], ready[scale.group])
        yield replicas

    def _of_runs(self, now: float) -> Iterable[Metric]:
        states = tuple(self._pipeline.runs.values())
        runs = GaugeMetricFamily("fairlead_runs", "Live runs", labels=["status"])
        count = Counter(state.run.status for state in states)
        for run_status in RunStatus:
            runs.add_metric([run_status.value], count[run_status])
        yield runs
        attempts = [
            (state.run.policy.band, job.attempts[-1])
            for state in states
            for job in state.jobs
            if job.attempts
        ]
        jobs = GaugeMetricFamily("fairlead_jobs", "Jobs of live runs", labels=["status"])
        of_jobs = Counter(attempt.status for _, attempt in attempts)
        for status in AttemptStatus:
            jobs.add_metric([status.value], of_jobs[status])
        yield jobs
        oldest = GaugeMetricFamily(
            "fairlead_oldest_queued_seconds",
            "How long the attempt that waits longest has waited for an allocation",
            labels=["band"],
        )
        waits: dict[Band, float] = {}
        for band, attempt in attempts:
            if attempt.status is AttemptStatus.SUBMITTED:
                waits[band] = max(waits.get(band, 0.0), now - attempt.submitted_at)
        for band, seconds in waits.items():
            oldest.add_metric([band.value], seconds)
        yield oldest

    def _of_nodes(self) -> Iterable[Metric]:
        all_nodes = tuple(self._pipeline.nodes.values())
        nodes = GaugeMetricFamily("fairlead_nodes", "Nodes by their link", labels=["status"])
        count = Counter(node.status for node in all_nodes)
        for status in NodeStatus:
            nodes.add_metric([status.value], count[status])
        yield nodes
        kept = GaugeMetricFamily(
            "fairlead_nodes_kept_from_work", "Nodes that get no new work", labels=["why"]
        )
        kept.add_metric(["draining"], sum(node.draining for node in all_nodes))
        kept.add_metric(["cordoned"], sum(node.cordoned for node in all_nodes))
        kept.add_metric(["unfit"], sum(node.unfit is not None for node in all_nodes))
        yield kept
        gpus = GaugeMetricFamily("fairlead_gpus", "GPUs of nodes", labels=["name", "state"])
        found: Counter[tuple[str, str]] = Counter()
        uses = node_uses(self._pipeline.known.values(), lambda run: run.name)
        for node in all_nodes:
            held = set(uses.get(node.id, NodeUse()).gpus)
            for gpu in node.capacity.gpus:
                state = "in_use" if gpu.uuid in held else "free" if gpu.healthy else "broken"
                found[gpu.name, state] += 1
        for (name, state), number in sorted(found.items()):
            gpus.add_metric([name, state], number)
        yield gpus

    def _of_machines(self, now: float) -> Iterable[Metric]:
        """Yield nothing where no provider is named."""
        if self._pipeline.rentals is None:
            return
        live = [one for one in self._pipeline.rentals.committed.values() if one.is_live]
        machines = GaugeMetricFamily(
            "fairlead_machines", "Rented machines that may cost money", labels=["status"]
        )
        count = Counter(status_of(one) for one in live)
        for status in LIVE_STATUSES:
            machines.add_metric([status], count[status])
        yield machines
        price = GaugeMetricFamily(
            "fairlead_machines_price_per_hour",
            "What the rented machines of a fleet cost an hour, those without a record included",
            labels=["fleet"],
        )
        by_fleet: dict[str, float] = {}
        orphans = self._pipeline.rentals.orphans_as_machines(now)
        for one in (*live, *(one for one in orphans if one.is_live)):
            by_fleet[one.fleet] = by_fleet.get(one.fleet, 0.0) + one.offer.price
        for fleet, each in sorted(by_fleet.items()):
            price.add_metric([fleet], each)
        yield price


class _WhenAsked:
    """A collector of what is there at that moment."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def describe(self) -> Iterable[Metric]:
        """Registering must not ask for a reading."""
        return ()
