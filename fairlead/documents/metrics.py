"""What jobs use, now and over time."""

from __future__ import annotations

from fairlead.documents.base import View
from fairlead.wire.node import GpuMetrics


class JobUseView(View, frozen=True):
    """A job's use, in seconds and bytes; null where the node does not count it. `message`: why
    there are no values. `memory` includes the file cache, `memory_working_set` only what the job
    needs."""

    job_id: str
    group: str
    cookie: int
    rank: int | None
    attempt_id: str
    node: str
    message: str | None
    at: str | None
    cpu_seconds: float | None
    memory: int | None
    memory_working_set: int | None
    memory_peak: int | None
    memory_limit: int | None
    oom_kills: int | None
    connections: int | None
    gpus: tuple[GpuMetrics, ...]


class MetricsAnswer(View, frozen=True):
    jobs: tuple[JobUseView, ...]


class MetricPoint(View, frozen=True):
    """A job's use in a span of time that ends at `at`: `cpu` in cores and `gpu_utilization` in
    percent are means, bytes are the most. GPU values are over all its GPUs; null: not known."""

    at: str
    cpu: float | None
    memory: int | None
    gpu_utilization: float | None
    gpu_memory: int | None


class GpuMetricPoint(View, frozen=True):
    """A GPU's use in a span of time that ends at `at`: `utilization` in percent is the mean,
    `memory` in bytes the most; null: not known."""

    at: str
    utilization: float | None
    memory: int | None


class GpuMetricsHistory(View, frozen=True):
    uuid: str
    points: tuple[GpuMetricPoint, ...]


class JobMetricsHistory(View, frozen=True):
    """`gpus`: of each of its GPUs, if that was asked for."""

    job_id: str
    group: str
    cookie: int
    rank: int | None
    attempt_id: str
    attempt: int
    points: tuple[MetricPoint, ...]
    gpus: tuple[GpuMetricsHistory, ...] = ()


class MetricsHistoryAnswer(View, frozen=True):
    """`until`: the end of the time that was asked for, which is the jobs' own if they ended."""

    jobs: tuple[JobMetricsHistory, ...]
    until: str | None = None
