"""The use of running jobs: asked of their nodes, and honest about nodes that do not answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient

from controller.metric_history import Sample
from controller.service.jobs.metric_sampler import MetricSampler
from fairlead.wire.node import GpuMetrics
from runner.client import RunnerUnavailable
from tests.doubles.node import FakeConnection
from tests.unit.api.asking import submit
from tests.unit.api.conftest import Controller
from tests.unit.cli.conftest import PlayedNode


async def use_of(api: TestClient[Any, Any], query: str = "") -> list[dict[str, Any]]:
    async with api.get(f"/v1/runs/hello/metrics{query}") as answer:
        assert answer.status == 200, await answer.text()
        jobs: list[dict[str, Any]] = (await answer.json())["jobs"]
        return jobs


@pytest.fixture
def connection(controller: Controller) -> FakeConnection:
    controller.connections["n1"] = FakeConnection()
    return controller.connections["n1"]  # type: ignore[return-value]


async def test_only_jobs_that_run_use_something(
    api: TestClient[Any, Any], controller: Controller, connection: FakeConnection
) -> None:
    await submit(api, name="hello")
    assert await use_of(api) == []
    await PlayedNode(controller).runs("hello")
    (used,) = await use_of(api)
    assert (used["group"], used["cookie"], used["node"]) == ("main", 0, "n1")
    assert (used["cpu_seconds"], used["memory_peak"]) == (12.5, 400 << 20)
    assert (used["gpus"], used["message"]) == ([], None)


async def test_a_node_that_does_not_answer_is_told_beside_the_job(
    api: TestClient[Any, Any], controller: Controller, connection: FakeConnection
) -> None:
    await submit(api, name="hello")
    await PlayedNode(controller).runs("hello")
    connection.the_runner.failures.append(RunnerUnavailable("gone"))
    (used,) = await use_of(api, "?job=main/0")
    assert (used["memory"], used["message"]) == (None, "it cannot be reached: gone")


@pytest.mark.parametrize("at", [1e300, -1e300])
async def test_an_impossible_measurement_of_a_runner_is_not_shown(
    api: TestClient[Any, Any], controller: Controller, connection: FakeConnection, at: float
) -> None:
    await submit(api, name="hello")
    await PlayedNode(controller).runs("hello")
    connection.the_runner.used = msgspec.structs.replace(connection.the_runner.used, at=at)
    (used,) = await use_of(api)
    assert (used["memory"], used["message"]) == (None, "its runner's answer is impossible")


async def test_only_the_jobs_own_gpus_are_shown(
    api: TestClient[Any, Any], controller: Controller, connection: FakeConnection
) -> None:
    await submit(api, name="hello")
    await PlayedNode(controller).runs("hello", gpus=("GPU-1",))
    connection.shim.metrics = msgspec.structs.replace(
        connection.shim.metrics,
        gpus=tuple(
            GpuMetrics(uuid=f"GPU-{n}", index=n, name="H100", memory=1, healthy=True, utilization=n)
            for n in (0, 1)
        ),
    )
    (used,) = await use_of(api)
    assert [(gpu["uuid"], gpu["utilization"]) for gpu in used["gpus"]] == [("GPU-1", 1)]


async def test_an_unknown_job_is_refused(api: TestClient[Any, Any]) -> None:
    await submit(api, name="hello")
    async with api.get("/v1/runs/hello/metrics?job=7") as answer:
        assert (answer.status, (await answer.json())["error"]["field"]) == (404, "job")


class Times:
    at = 0.0

    def now(self) -> float:
        return self.at


def sampler_of(controller: Controller, clock: Times) -> MetricSampler:
    service = controller.service
    live = controller.pipeline.runs
    return MetricSampler(
        service.jobs.metrics, service.jobs.metric_history, clock, lambda: live.values()
    )


async def test_each_gpu_of_a_job_has_a_history_of_its_own(
    api: TestClient[Any, Any], controller: Controller, connection: FakeConnection
) -> None:
    await submit(api, name="hello")
    attempt = await PlayedNode(controller).runs("hello", gpus=("GPU-1", "GPU-0"))
    clock, begun = Times(), controller.service.clock.now()
    sampler = sampler_of(controller, clock)
    for passed in (-200.0, -100.0):
        clock.at = begun + passed
        connection.shim.metrics = msgspec.structs.replace(
            connection.shim.metrics,
            gpus=tuple(
                GpuMetrics(
                    uuid=f"GPU-{n}",
                    index=n,
                    name="H100",
                    memory=80,
                    healthy=True,
                    utilization=50 * n,
                    memory_used=n + 7,
                )
                for n in (0, 1, 2)
            ),
        )
        await sampler.tick()

    async def history(query: str) -> dict[str, Any]:
        async with api.get(f"/v1/runs/hello/metrics/history?{query}") as answer:
            (job,) = (await answer.json())["jobs"]
            found: dict[str, Any] = job
            return found

    told = await history(f"attempt={attempt}&gpus=true")
    assert [one["uuid"] for one in told["gpus"]] == ["GPU-1", "GPU-0"]
    values = [
        [(point["utilization"], point["memory"]) for point in one["points"]] for one in told["gpus"]
    ]
    assert values == [[(50.0, 8)] * 2, [(0.0, 7)] * 2]
    assert {point["gpu_utilization"] for point in told["points"]} == {25.0}
    assert (await history(f"attempt={attempt}"))["gpus"] == []


async def test_running_jobs_are_sampled_often_at_first_and_then_once_a_minute(
    api: TestClient[Any, Any], controller: Controller, connection: FakeConnection
) -> None:
    await submit(api, name="hello")
    attempt = await PlayedNode(controller).runs("hello")
    clock, begun = Times(), controller.service.clock.now()
    sampler = sampler_of(controller, clock)
    for passed in (0.0, 5.0, 10.0, 20.0, 700.0, 710.0, 760.0):
        clock.at = begun + passed
        await sampler.tick()
    samples = controller.service.jobs.metric_history.read(attempt, 0.0)
    assert [one.at - begun for one in samples] == [0.0, 10.0, 20.0, 700.0, 760.0]


async def test_many_jobs_are_sampled_in_turn_and_never_more_of_them_at_once(
    api: TestClient[Any, Any], controller: Controller, connection: FakeConnection
) -> None:
    attempts = []
    for name in ("hello", "other"):
        await submit(api, name=name)
        attempts.append(await PlayedNode(controller).runs(name))
    service, clock, live = controller.service, Times(), controller.pipeline.runs
    history = service.jobs.metric_history
    sampler = MetricSampler(
        service.jobs.metrics, history, clock, lambda: live.values(), most_at_once=1
    )
    clock.at = begun = service.clock.now()
    await sampler.tick()
    assert [len(history.read(one, 0.0)) for one in attempts] == [1, 0]
    clock.at = begun + 10.0
    await sampler.tick()
    assert [len(history.read(one, 0.0)) for one in attempts] == [1, 1]


async def test_a_job_that_lies_about_its_use_is_not_believed(
    api: TestClient[Any, Any], controller: Controller, connection: FakeConnection
) -> None:
    await submit(api, name="hello")
    attempt = await PlayedNode(controller).runs("hello")
    runner = connection.the_runner
    runner.used = msgspec.structs.replace(
        runner.used, cpu_seconds=float("nan"), memory_working_set=1 << 80
    )
    await sampler_of(controller, Times()).tick()
    (sample,) = controller.service.jobs.metric_history.read(attempt, 0.0)
    assert (sample.cpu_seconds, sample.memory) == (None, None)


async def test_the_history_of_a_job_is_told_in_so_many_points(
    api: TestClient[Any, Any], controller: Controller, connection: FakeConnection
) -> None:
    await submit(api, name="hello")
    attempt = await PlayedNode(controller).runs("hello")
    now = controller.service.clock.now()
    for number in range(60):
        sample = Sample(now - 600 + 10 * number, 20.0 * number, 1 << 20)
        controller.service.jobs.metric_history.append(attempt, sample)
    async with api.get("/v1/runs/hello/metrics/history?seconds=300&points=10") as answer:
        (job,) = (await answer.json())["jobs"]
    assert (job["group"], job["attempt_id"], len(job["points"])) == ("main", attempt, 10)
    assert {point["cpu"] for point in job["points"]} == {2.0}
    async with api.get("/v1/runs/hello/metrics/history?seconds=1e9") as answer:
        assert (answer.status, (await answer.json())["error"]["field"]) == (400, "seconds")
