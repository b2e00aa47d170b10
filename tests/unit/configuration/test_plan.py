"""A plan holds what the user wrote, and defaults elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from controller.lifecycle.model import (
    Amount,
    Band,
    GpuNeed,
    JobSpec,
    Resources,
    RetryEvent,
    RetryPolicy,
    RunPolicy,
    RunType,
    StopCriteria,
)
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.masking import public
from fairlead.configuration.runs.plan import Defaults, Plan, to_run
from fairlead.model.needs import Permissions
from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.shim import PullPolicy, RegistryAuth

EVERYTHING = frozenset(RetryEvent)


def planned(**fields: Any) -> Plan:
    written = {"type": "task", "commands": ["echo hi"], **fields}
    return to_run(parse(written), written, Defaults())


def test_an_unwritten_field_has_the_lifecycles_default() -> None:
    plan = planned()

    assert plan.type is RunType.TASK
    assert plan.name is None
    assert plan.policy == RunPolicy()
    resources = Resources(cpu=1.0, memory=2 << 30, unset=tuple(Amount))
    assert plan.specs == (
        JobSpec(
            image="astral/uv:python3.13-bookworm",
            commands=("echo hi",),
            env={"UV_SYSTEM_PYTHON": "1"},
            resources=resources,
        ),
    )


def test_shared_memory_counts_beside_the_default_memory() -> None:
    resources = planned(resources={"shm_size": "6GiB"}).specs[0].resources
    assert (resources.memory, resources.shm_size) == (8 << 30, 6 << 30)
    assert resources.unset == (Amount.CPU, Amount.MEMORY)


def test_every_field_arrives() -> None:
    plan = planned(
        name="train",
        image="busybox",
        shell="/bin/sh",
        env={"A": 1, "B": 2.5, "C": "x"},
        working_dir="/w",
        user=1000,
        stop_signal="SIGINT",
        restart_exit_code=75,
        log_quota="2GiB",
        outputs=["ckpt/*.pt", "/tmp/logs"],
        fail_on_log_quota=True,
        pull_policy="always",
        registry_auth={"username": "u", "password": "p"},
        max_duration="2h",
        stop_duration="10s",
        scheduling_timeout=0,
        stop_criteria="master-done",
        max_failed_jobs=1,
        max_failed_attempts=2,
        fail_on_job_restart=True,
        restart_completed_jobs=True,
        priority=7,
        band="batch",
        resources={"cpu": "2..", "memory": "8GB", "disk": "1TB..", "shm_size": "64MiB", "gpu": 2},
    )

    assert plan.name == "train"
    assert plan.policy == RunPolicy(
        max_duration=7200.0,
        stop_duration=10.0,
        scheduling_timeout=0.0,
        stop_criteria=StopCriteria.MASTER_DONE,
        max_failed_jobs=1,
        max_failed_attempts=2,
        fail_on_job_restart=True,
        restart_completed_jobs=True,
        priority=7,
        band=Band.BATCH,
    )
    assert plan.specs == (
        JobSpec(
            image="busybox",
            commands=("echo hi",),
            shell="/bin/sh",
            env={"A": "1", "B": "2.5", "C": "x"},
            working_dir="/w",
            user="1000",
            stop_signal="SIGINT",
            restart_exit_code=75,
            log_quota=2 << 30,
            outputs=("ckpt/*.pt", "/tmp/logs"),
            outputs_limit=1 << 30,
            fail_on_log_quota=True,
            pull_policy=PullPolicy.ALWAYS,
            registry_auth=RegistryAuth(username="u", password="p"),
            resources=Resources(
                cpu=2.0,
                memory=8_000_000_000,
                disk=1_000_000_000_000,
                shm_size=64 << 20,
                gpu=GpuNeed(count=2),
                engine=(EngineAbility.IMAGES,),
            ),
        ),
    )


@pytest.mark.parametrize(
    ("written", "policy"),
    [
        (True, RetryPolicy(on_events=EVERYTHING, duration=3600.0)),
        (False, RetryPolicy(on_events=frozenset())),
        ({}, RetryPolicy(on_events=EVERYTHING)),
        ({"duration": "off"}, RetryPolicy(on_events=EVERYTHING)),
        (
            {"on_events": ["error"], "duration": "1d", "max_failures": 3},
            RetryPolicy(on_events=frozenset({RetryEvent.ERROR}), duration=86400.0, max_failures=3),
        ),
        ({"max_preemptions": 0}, RetryPolicy(on_events=EVERYTHING, max_preemptions=0)),
    ],
)
def test_retry_has_a_short_and_a_long_form(written: object, policy: RetryPolicy) -> None:
    assert planned(retry=written).policy.retry == policy


@pytest.mark.parametrize(
    ("written", "need"),
    [
        (1, GpuNeed(count=1)),
        ("2", GpuNeed(count=2)),
        ("2..", GpuNeed(count=2)),
        ("A100", GpuNeed(count=1, names=("A100",))),
        ("A100:2", GpuNeed(count=2, names=("A100",))),
        ("A100:80GB:2", GpuNeed(count=2, names=("A100",), min_memory=80_000_000_000)),
        ("H100, H200:8", GpuNeed(count=8, names=("H100", "H200"))),
        ("24GB", GpuNeed(count=1, min_memory=24_000_000_000)),
        ("24GB..:2", GpuNeed(count=2, min_memory=24_000_000_000)),
        (
            {"name": ["L4"], "count": "2..", "memory": "24GB..", "compute_capability": 8.9},
            GpuNeed(
                count=2, names=("L4",), min_memory=24_000_000_000, min_compute_capability="8.9"
            ),
        ),
    ],
)
def test_gpus_are_written_as_dstack_writes_them(written: object, need: GpuNeed) -> None:
    assert planned(resources={"gpu": written}).specs[0].resources.gpu == need


def test_limits_that_are_off_are_off_even_if_the_default_is_not() -> None:
    written = {"type": "task", "commands": ["a"], "max_duration": False}
    plan = to_run(parse(written), written, Defaults(max_duration=5.0, scheduling_timeout=6.0))

    assert (plan.policy.max_duration, plan.policy.scheduling_timeout) == (None, 6.0)


@pytest.mark.parametrize("env", [{"TOKEN": "hunter2"}, ["TOKEN=hunter2"], "hunter2", ["hunter2"]])
def test_a_shown_configuration_holds_no_secret(env: object) -> None:
    written = {
        "type": "task",
        "env": env,
        "registry_auth": {"username": "u", "password": "hunter2", "x": {"y": "hunter2"}},
    }
    shown = public(written)

    assert shown["type"] == "task"
    assert shown["registry_auth"] == {"username": "u", "password": "***", "x": "***"}
    assert "TOKEN" in str(shown) or env in ("hunter2", ["hunter2"])
    assert written["env"] == env


def test_hidden_values_keep_their_names() -> None:
    assert public({"env": {"API_KEY": "x"}})["env"] == {"API_KEY": "***"}
    assert public({"env": ["API_KEY=x"]})["env"] == ["API_KEY=***"]
    assert public({"env": "x"})["env"] == "***"
    assert public({"registry_auth": "x"})["registry_auth"] == {}


@pytest.mark.parametrize(
    ("repo", "shown"),
    [
        ("https://h/r.git?token=canary:/code", "https://h/r.git?***:/code"),
        ({"url": "https://h/r.git?t=cana:ry"}, {"url": "https://h/r.git?***"}),
        (
            {"local_path": ".", "uploaded": {"url": "https://h/r?t=canary", "token": "canary"}},
            {"local_path": ".", "uploaded": {"url": "https://h/r?***", "token": "***"}},
        ),
        ("./what?:/code", "./what?:/code"),
        ({"url": "https://h/r.git"}, {"url": "https://h/r.git"}),
    ],
)
def test_the_query_of_a_repositorys_url_is_hidden(repo: object, shown: object) -> None:
    assert public({"repos": [repo]})["repos"] == [shown]


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({}, ()),
        ({"image": "busybox"}, (EngineAbility.IMAGES,)),
        ({"volumes": ["/data:/data"]}, (EngineAbility.VOLUMES,)),
        ({"image": "busybox", "volumes": ["/data:/data"]}, tuple(EngineAbility)[:2]),
        ({"privileged": True}, (EngineAbility.OPTIONS,)),
        ({"cap_add": ["SYS_PTRACE"]}, (EngineAbility.OPTIONS,)),
        ({"cap_drop": ["NET_RAW"]}, (EngineAbility.OPTIONS,)),
        ({"ulimits": {"nofile": 4096}}, (EngineAbility.OPTIONS,)),
        ({"pids_limit": 100}, (EngineAbility.OPTIONS,)),
        ({"read_only_root": True}, (EngineAbility.OPTIONS,)),
        ({"ssh": "install"}, (EngineAbility.OPTIONS,)),
        ({"python": "3.12"}, ()),
        ({"init": True, "core_dumps": True, "pull_policy": "always", "ssh": "embedded"}, ()),
    ],
)
def test_what_not_every_engine_can_do_is_a_need_of_the_job(
    fields: dict[str, Any], needs: tuple[EngineAbility, ...]
) -> None:
    assert planned(**fields).specs[0].resources.engine == needs


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({"cap_add": ["SYS_PTRACE"], "ulimits": {"nofile": 4096}}, Permissions()),
        ({"privileged": True}, Permissions(privileged=True)),
        ({"cap_add": ["SYS_ADMIN"]}, Permissions(privileged=True)),
        ({"cap_add": ["NET_RAW"]}, Permissions(raw_sockets=True)),
        ({"volumes": ["cache:/cache"]}, Permissions()),
        (
            {"volumes": ["/data/a:/a", "/data/b:/b:ro"]},
            Permissions(host_paths=("/data/a", "/data/b")),
        ),
    ],
)
def test_what_not_every_operator_allows_is_a_need_of_the_job(
    fields: dict[str, Any], needs: Permissions
) -> None:
    assert planned(**fields).specs[0].resources.permissions == needs


def test_each_group_needs_what_its_own_jobs_ask_for() -> None:
    groups = [{"name": "a", "nodes": 1, "image": "busybox"}, {"name": "b", "nodes": 1}]
    plan = planned(groups=groups)
    assert [spec.resources.engine for spec in plan.specs] == [(EngineAbility.IMAGES,), ()]


def test_the_operators_image_of_nvcc_is_asked_for_and_the_default_image_is_not() -> None:
    defaults = Defaults(image="mine:1", nvcc_image="cuda:1")
    for fields, needs in (({}, ()), ({"nvcc": True}, (EngineAbility.IMAGES,))):
        written = {"type": "task", "commands": ["true"], **fields}
        (spec,) = to_run(parse(written), written, defaults).specs
        assert spec.resources.engine == needs
