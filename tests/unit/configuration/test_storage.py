"""Volumes, limits and capabilities, from the forms that people write to what a job gets."""

from __future__ import annotations

from typing import Any

import pytest

from controller.lifecycle.model import JobSpec
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.plan import Defaults, to_run
from fairlead.wire.shim import ContainerOptions, Ulimit, VolumeKind, VolumeMount

TASK: dict[str, Any] = {"type": "task", "commands": ["true"]}


def job(**fields: Any) -> JobSpec:
    written = TASK | fields
    return to_run(parse(written), written, Defaults()).specs[0]


def refusal(**fields: Any) -> tuple[str, str]:
    with pytest.raises(ConfigurationError) as caught:
        parse(TASK | fields)
    return caught.value.field, str(caught.value)


@pytest.mark.parametrize(
    ("written", "mount"),
    [
        ("data:/data", VolumeMount(kind=VolumeKind.NAMED, source="data", target="/data")),
        ("/mnt/d:/data", VolumeMount(kind=VolumeKind.HOST, source="/mnt/d", target="/data")),
        (
            "/mnt/d:/data:ro",
            VolumeMount(kind=VolumeKind.HOST, source="/mnt/d", target="/data", read_only=True),
        ),
        (
            {"name": "cache", "path": "/root/.cache"},
            VolumeMount(kind=VolumeKind.NAMED, source="cache", target="/root/.cache"),
        ),
        (
            {"instance_path": "/mnt/d", "path": "/data", "optional": True},
            VolumeMount(kind=VolumeKind.HOST, source="/mnt/d", target="/data", optional=True),
        ),
        (
            {"device": "/dev/vdb", "path": "/data", "read_only": True},
            VolumeMount(kind=VolumeKind.DEVICE, source="/dev/vdb", target="/data", read_only=True),
        ),
        (
            {"tmpfs": "64MiB", "path": "/scratch"},
            VolumeMount(kind=VolumeKind.TMPFS, target="/scratch", size=64 << 20),
        ),
    ],
)
def test_a_volume_is_written_in_one_line_or_in_full(written: Any, mount: VolumeMount) -> None:
    assert job(volumes=[written]).volumes == (mount,)


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("data", "is not SOURCE:PATH"),
        ("data:/data:rx", "is not SOURCE:PATH"),
        ("data:data", "is not an absolute path in the container"),
        ("data:/", "is not an absolute path in the container"),
        ("Data:/data", "is not the name of a volume"),
        ("/mnt/../etc:/data", "must not contain '..'"),
        ({"path": "/data"}, "needs exactly one of name, instance_path, device, tmpfs"),
        ({"name": "a", "tmpfs": "1GB", "path": "/data"}, "needs exactly one of"),
        ({"tmpfs": "1GB", "path": "/data", "read_only": True}, "do not apply to it"),
        ({"name": "a", "path": "/data", "optional": True}, "so it cannot be optional"),
        ({"tmpfs": "1GB", "path": "/a/../proc"}, "not an absolute path below / in the container"),
        ("data:/proc", "no volume can be mounted at /proc"),
        ("/dev/dri:/dev/dri", "`gpu` brings a GPU's devices; give another path"),
        ("data://opt/fairlead", "no volume can be mounted at /opt/fairlead"),
        ("data:/opt:ro", "must not be read only"),
        ("data:/ok/", "two volumes have the target /ok"),
        (7, "is not a volume"),
    ],
)
def test_a_wrong_volume_is_refused_with_its_place_in_the_list(written: Any, sentence: str) -> None:
    field, text = refusal(volumes=["ok:/ok", written])
    assert (field, sentence in text) == ("volumes[1]", True)


def test_more_volumes_than_a_node_mounts_are_refused() -> None:
    field, text = refusal(volumes=[f"data:/data/{number}" for number in range(65)])
    assert (field, "65 volumes are too many: 64 at most" in text) == ("volumes[64]", True)


def test_a_wrong_volume_of_a_group_is_named_with_its_group() -> None:
    groups = [{"name": "a", "volumes": ["data:/sys"]}]
    field, text = refusal(groups=groups)
    assert (field, "no volume can be mounted at /sys" in text) == ("groups[0].volumes[0]", True)


def test_a_misspelt_field_of_a_volume_is_named() -> None:
    field, text = refusal(volumes=["ok:/ok", {"nam": "a", "path": "/data"}])
    assert (field, "did you mean name?" in text) == ("volumes[1].nam", True)


def test_limits_and_capabilities_reach_the_job() -> None:
    made = job(
        ulimits={"memlock": "unlimited", "nofile": "1024:4096", "nproc": 99},
        cap_add=["CAP_IPC_LOCK", "sys_ptrace"],
        cap_drop=["ALL"],
        privileged=True,
        pids_limit=64,
        read_only_root=True,
        init=True,
    )
    assert made.container == ContainerOptions(
        ulimits=(
            Ulimit(name="memlock", soft=-1, hard=-1),
            Ulimit(name="nofile", soft=1024, hard=4096),
            Ulimit(name="nproc", soft=99, hard=99),
        ),
        cap_add=("IPC_LOCK", "SYS_PTRACE"),
        cap_drop=("ALL",),
        privileged=True,
        pids_limit=64,
        read_only_root=True,
        init=True,
    )


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"ulimits": {"memlock": "much"}}, "ulimits"),
        ({"ulimits": ["memlock"]}, "ulimits"),
        ({"ulimits": {"memory": 1}}, "ulimits"),
        ({"ulimits": {"nofile": "2048:1024"}}, "ulimits"),
        ({"cap_add": ["SYS_EVERYTHING"]}, "cap_add[0]"),
        ({"cap_add": ["sys ptrace"]}, "cap_add[0]"),
        ({"pids_limit": 7}, "pids_limit"),
        ({"pids_limit": 10**30}, "pids_limit"),
        ({"max_failed_jobs": 10**30}, "max_failed_jobs"),
        ({"max_failed_attempts": 10**30}, "max_failed_attempts"),
        ({"retry": {"max_failures": 10**30}}, "retry.max_failures"),
        ({"retry": {"max_preemptions": 10**30}}, "retry.max_preemptions"),
    ],
)
def test_a_wrong_limit_is_refused_by_its_field(fields: dict[str, Any], field: str) -> None:
    assert refusal(**fields)[0] == field
