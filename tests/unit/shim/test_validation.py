"""A request that is wrong on any node is refused, with its field, before anything is begun."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.wire.errors import Refused
from fairlead.wire.shim import (
    GpuRequest,
    TaskRequest,
    TaskResources,
    TerminateRequest,
    VolumeKind,
    VolumeMount,
)
from shim.admission import validation
from tests.unit.shim.parts import request

ENOUGH: dict[str, Any] = {"cpu": 1.0, "memory": 1 << 30}


def of(**changes: Any) -> TaskRequest:
    return request(resources=TaskResources(**(ENOUGH | changes)))


def gpu(**changes: Any) -> TaskRequest:
    return of(gpu=GpuRequest(**changes))


def tmpfs(size: int) -> VolumeMount:
    return VolumeMount(kind=VolumeKind.TMPFS, target="/t", size=size)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (request(run_id="../r"), "run_id"),
        (request(allocation_id=""), "allocation_id"),
        (request(run_name="x" * 1000), "run_name"),
        (request(image=" "), "image"),
        (request(image="x" * 5000), "image"),
        (request(hostname="a b"), "hostname"),
        (request(hostname="x" * 64), "hostname"),
        (request(hostname="-x"), "hostname"),
        (request(stop_when_unheard_seconds=0.0), "stop_when_unheard_seconds"),
        (request(stop_when_unheard_seconds=1e300), "stop_when_unheard_seconds"),
        (request(volumes=(tmpfs(1), tmpfs(10**30))), "volumes[1].size"),
        (of(cpu=0.0), "resources.cpu"),
        (of(cpu=1e300), "resources.cpu"),
        (of(memory=10**30), "resources.memory"),
        (of(disk=10**30), "resources.disk"),
        (of(shm_size=10**30), "resources.shm_size"),
        (gpu(count=10**30), "resources.gpu.count"),
        (gpu(count=1, min_memory=10**30), "resources.gpu.min_memory"),
        (of(memory=1), "resources.memory"),
        (of(disk=-1), "resources.disk"),
        (of(shm_size=-1), "resources.shm_size"),
        (of(shm_size=0), "resources.shm_size"),
        (gpu(count=-1), "resources.gpu.count"),
        (gpu(count=2, uuids=("GPU-a",)), "resources.gpu.count"),
        (gpu(count=1, min_memory=-1), "resources.gpu.min_memory"),
        (gpu(count=1, min_compute_capability="ampere"), "resources.gpu.min_compute_capability"),
        (gpu(count=1, min_compute_capability=""), "resources.gpu.min_compute_capability"),
    ],
)
def test_a_request_that_no_node_could_serve_is_refused_by_the_name_of_its_field(
    wrong: TaskRequest, field: str
) -> None:
    with pytest.raises(Refused) as caught:
        validation.check(wrong)
    assert (caught.value.status, caught.value.field) == (400, field)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "right",
    [
        request(hostname="fair-wind"),
        request(image="registry.example.com:5000/team/image@sha256:" + "0" * 64),
        request(image="Not An Image"),
        request(stop_when_unheard_seconds=30.0),
        of(shm_size=1 << 20, disk=0),
        gpu(uuids=("GPU-a", "GPU-b")),
        gpu(count=1, uuids=("GPU-a",)),
        gpu(count=2, min_compute_capability="8.0"),
        gpu(count=2, min_compute_capability="9"),
    ],
)
def test_a_request_that_some_node_could_serve_is_not_refused_here(right: TaskRequest) -> None:
    validation.check(right)


@pytest.mark.parametrize("grace", [-1.0, 1e300])
def test_a_grace_without_an_end_is_refused(grace: float) -> None:
    with pytest.raises(Refused, match="grace must be 0 or more seconds"):
        validation.check_order(TerminateRequest(grace=grace))
