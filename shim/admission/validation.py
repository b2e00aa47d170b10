"""Checks a task's request as any node would; each error names its field. Pure.

Other modules check what depends on this node: its capacity, and what its operator allows.
"""

from __future__ import annotations

import re

from fairlead.wire.amounts import UNITS, Unit, amounts_of
from fairlead.wire.shim import GpuRequest, TaskRequest, TaskResources, TerminateRequest
from shim.access.jump_keys import check_keys
from shim.errors import invalid
from shim.node.machine import MIN_MEMORY
from shim.settings import check_name

_MAX_IMAGE = 1024
_MAX_RUN_NAME = 256
_MAX_HOSTNAME = 63
"""The kernel's limit is 64 with the final zero byte."""
_HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", re.ASCII)
_MAX_CORES = 65536.0
_MAX_BYTES = 1 << 60
_MAX_SECONDS = 10 * 366 * 86400.0
_CAPABILITY = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3})?", re.ASCII)


def check(request: TaskRequest) -> None:
    """Raise Refused (400) for an invalid request."""
    check_name(request.run_id, "run_id")
    check_name(request.allocation_id, "allocation_id")
    if len(request.run_name) > _MAX_RUN_NAME:
        raise invalid(f"at most {_MAX_RUN_NAME} characters", "run_name")
    _check_image(request.image)
    _check_resources(request.resources)
    _check_gpu(request.resources.gpu)
    _check_hostname(request.hostname)
    unheard = request.stop_when_unheard_seconds
    if unheard is not None and not 0 < unheard <= _MAX_SECONDS:
        message = "it must be more than 0 seconds and at most 10 years"
        raise invalid(message, "stop_when_unheard_seconds")
    for number, volume in enumerate(request.volumes):
        _check_size(volume.size, f"volumes[{number}].size")
    if request.ssh is not None:
        check_keys(request.ssh)


def check_order(order: TerminateRequest) -> None:
    """Raise Refused (400) for an invalid order to stop."""
    if not 0 <= order.grace <= _MAX_SECONDS:
        raise invalid("grace must be 0 or more seconds, and at most 10 years", "grace")


def _check_image(image: str) -> None:
    """Check the length only: the engine decides whether it is an image's name, and the task ends
    with its reason."""
    if not image.strip():
        raise invalid("an image is needed", "image")
    if len(image) > _MAX_IMAGE:
        raise invalid(f"an image's name has at most {_MAX_IMAGE} characters", "image")


def _check_resources(resources: TaskResources) -> None:
    if not 0 < resources.cpu <= _MAX_CORES:
        message = f"cpu must be greater than 0 cores and at most {_MAX_CORES:g}"
        raise invalid(message, "resources.cpu")
    for name, amount in amounts_of(resources).items():
        if UNITS[name] is not Unit.CORES:
            _check_size(amount, f"resources.{name}")
        if amount < 0:
            raise invalid(f"{name} must not be negative", f"resources.{name}")
    _check_size(resources.shm_size, "resources.shm_size")
    if resources.memory < MIN_MEMORY:
        raise invalid("memory must be at least 6 MiB", "resources.memory")
    # Docker takes 0 for its default of 64 MiB: not what the job asked for.
    if resources.shm_size is not None and resources.shm_size <= 0:
        raise invalid("shm_size must be more than 0 bytes", "resources.shm_size")


def _check_size(size: int | None, field: str) -> None:
    if size is not None and size > _MAX_BYTES:
        raise invalid(f"at most {_MAX_BYTES} bytes", field)


def _check_gpu(gpu: GpuRequest) -> None:
    if not 0 <= gpu.count <= _MAX_CORES:
        message = f"count must not be negative, and at most {_MAX_CORES:g}"
        raise invalid(message, "resources.gpu.count")
    _check_size(gpu.min_memory, "resources.gpu.min_memory")
    if gpu.uuids and gpu.count not in (0, len(gpu.uuids)):
        raise invalid(
            f"count is {gpu.count}, but {len(gpu.uuids)} GPUs are named in `uuids`; leave it out "
            "or let it be the same",
            "resources.gpu.count",
        )
    if gpu.min_memory < 0:
        raise invalid("min_memory must not be negative", "resources.gpu.min_memory")
    least = gpu.min_compute_capability
    if least is not None and not _CAPABILITY.fullmatch(least):
        raise invalid(
            f"{least!r:.80} is not a compute capability, such as 8.0",
            "resources.gpu.min_compute_capability",
        )


def _check_hostname(name: str | None) -> None:
    if name is not None and not (_HOSTNAME.fullmatch(name) and len(name) <= _MAX_HOSTNAME):
        raise invalid(
            f"a hostname has 1 to {_MAX_HOSTNAME} letters, digits, '-' and '.', and begins and "
            "ends with a letter or a digit",
            "hostname",
        )
