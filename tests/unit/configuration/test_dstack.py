"""Files of dstack mean here what they mean there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.configuration.convert import ConfigurationError
from controller.configuration.dstack import translated
from controller.configuration.images import NEWEST_PYTHON, image_for
from controller.configuration.parse import parse
from controller.configuration.plan import Defaults, Plan, to_run
from controller.configuration.source import with_environment
from controller.lifecycle.model import GpuNeed
from runner.schemas import EnvStyle

SHAPES = Path(__file__).parent / "dstack-shapes.jsonl"
SHAPES_OF_ALL = [json.loads(line) for line in SHAPES.read_text().splitlines()]
TASKS = [shape for shape in SHAPES_OF_ALL if shape.get("type") == "task"]
SERVICES_ACCEPTED_AT_LEAST = 51
NAMES = ("HF_TOKEN", "WANDB_API_KEY")
NO_CLOUD = {"spot_policy": "auto", "backends": ["aws"], "max_price": 2.5}
ACCEPTED_AT_LEAST = 90


def filled(shape: Any) -> Any:
    """The shape with values that a user would have written in place of the masked ones."""
    if isinstance(shape, dict):
        return {name: filled_field(name, content) for name, content in shape.items()}
    if isinstance(shape, list):
        return [filled(one) for one in shape]
    return shape


def filled_field(name: str, content: Any) -> Any:
    if name in ("path", "instance_path", "url", "prefix") and content == "text":
        return "/text"
    if name == "format" and content == "text":
        return "openai"
    if name == "groups":
        return [
            {**filled(group), **({"name": f"g{number}"} if "name" in group else {})}
            for number, group in enumerate(content)
        ]
    if name == "volumes" and len(content) > 1:
        return [
            f"{one}/{number}" if isinstance(one, str) else filled(one)
            for number, one in enumerate(content)
        ]
    if name == "repos":
        return [one.replace("p://", "https://") if isinstance(one, str) else one for one in content]
    return filled(content)


def environment(task: dict[str, Any]) -> dict[str, str]:
    entries = task.get("env", [])
    return {entry: "v" for entry in entries if isinstance(entry, str) and "=" not in entry}


def planned(task: dict[str, Any]) -> Plan:
    filled_in = with_environment(filled(task), environment(task), {})
    assert isinstance(filled_in, dict)
    without_code = {key: one for key, one in filled_in.items() if key not in ("repos", "files")}
    parse(filled_in)
    return to_run(parse(without_code), without_code, Defaults())


def refusal(task: dict[str, Any]) -> str | None:
    try:
        planned(task)
    except ConfigurationError as error:
        return str(error)
    return None


def test_nearly_all_tasks_of_the_corpus_are_accepted_and_the_others_get_a_hint() -> None:
    refused = [why for task in TASKS if (why := refusal(task)) is not None]
    assert len(TASKS) == 98
    assert len(TASKS) - len(refused) >= ACCEPTED_AT_LEAST, "\n".join(refused)
    for why in refused:
        assert "allowed: " in why, why


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_a_task_of_the_corpus_keeps_its_meaning(task: dict[str, Any]) -> None:
    if refusal(task) is not None:
        return
    plan = planned(task)
    groups = task.get("groups") or [task]
    assert [one.group.nodes for one in plan.groups] == [one.get("nodes", 1) for one in groups]
    for written, made in zip(groups, plan.groups, strict=True):
        needed, asked = made.spec.resources, {**(task.get("resources") or task), **written}
        asked = {**asked, **(written.get("resources") or {})}
        if "image" in task:
            assert made.spec.image == task["image"]
        if "python" in task:
            assert made.spec.python == str(task["python"])
            assert f"python{task['python']}-" in made.spec.image
        elif "image" not in task and not task.get("nvcc") and not task.get("docker"):
            assert f"python{NEWEST_PYTHON}-" in made.spec.image
            assert made.spec.env["UV_SYSTEM_PYTHON"] == "1"
        if not task.get("docker") and "entrypoint" not in task:
            assert list(made.spec.commands) == written.get("commands", [])
        assert list(made.spec.setup) == written.get("setup", task.get("setup", []))
        for name in environment(task):
            assert made.spec.env[name] == "v"
        assert needed.whole_node is (sum(one.get("nodes", 1) for one in groups) > 1)
        assert (
            needed.gpu == GPUS[json.dumps(asked["gpu"])] if "gpu" in asked else not needed.gpu.count
        )
        for name in ("memory", "shm_size", "disk"):
            if name in asked:
                assert getattr(needed, name) == BYTES[asked[name]]
        if "cpu" in asked:
            assert needed.cpu == float(str(asked["cpu"]).removesuffix(".."))
        assert made.spec.container.privileged is bool(task.get("privileged") or task.get("docker"))
    assert plan.policy.stop_criteria == task.get("stop_criteria", "all-done")
    assert plan.policy.startup_order == task.get("startup_order", "any")
    assert plan.policy.priority == task.get("priority", 50)


def test_most_services_of_the_corpus_are_accepted_with_their_python() -> None:
    accepted = 0
    for written in (shape for shape in SHAPES_OF_ALL if shape.get("type") == "service"):
        data = with_environment(filled(written), environment(written), {})
        try:
            parsed = parse(data)
        except ConfigurationError:
            continue
        accepted += 1
        if "python" in written:
            assert parsed.python == str(written["python"])
            assert parsed.env_style == (EnvStyle.DSTACK,)
    assert accepted >= SERVICES_ACCEPTED_AT_LEAST


GB = 10**9
BYTES = {
    **{f"{number}GB": number * GB for number in (8, 16, 24, 32, 64, 128, 150, 200, 500)},
    **{f"{number}GB..": number * GB for number in (4, 100, 200, 500, 1000)},
}


def need(count: int, *names: str, memory: int = 0) -> GpuNeed:
    return GpuNeed(count=count, names=names, min_memory=memory * GB)


GPUS: dict[str, GpuNeed] = {
    json.dumps(written): made
    for written, made in [
        (1, need(1)),
        (8, need(8)),
        ("1..8", need(1)),
        ("nvidia:1..8", need(1)),
        ("24GB", need(1, memory=24)),
        ("48GB", need(1, memory=48)),
        ("16GB..", need(1, memory=16)),
        ("16GB..24GB", need(1, memory=16)),
        ("nvidia:4:16GB", need(4, memory=16)),
        ("24GB:1..2", need(1, memory=24)),
        ("40GB..80GB:4", need(4, memory=40)),
        ("80GB:8", need(8, memory=80)),
        ("A100:80GB:8", need(8, "A100", memory=80)),
        ("A100:8", need(8, "A100")),
        ("H100:1", need(1, "H100")),
        ("H100:1..2", need(1, "H100")),
        ("H100:4", need(4, "H100")),
        ("H100:8", need(8, "H100")),
        ("H200", need(1, "H200")),
        ("nvidia:B200:8", need(8, "B200")),
        ("MI300X", need(1, "MI300X")),
        ("MI300X:8", need(8, "MI300X")),
        ("MI300X:4..", need(4, "MI300X")),
        ("gaudi2:8", need(8, "gaudi2")),
        ("tt-galaxy-wh:32", need(32, "tt-galaxy-wh")),
        ("v5litepod-8", need(1, "v5litepod-8")),
        ("v2-8", need(1, "v2-8")),
        ({"memory": "24GB..", "count": "1.."}, need(1, memory=24)),
    ]
}


def task(**fields: Any) -> dict[str, Any]:
    return {"type": "task", "commands": ["true"], **fields}


def test_a_file_without_dstacks_own_forms_stays_as_it_is() -> None:
    own = task(resources={"gpu": 1}, constraints=["rack EQ r1"])
    assert translated(own).data == own
    assert planned(own).specs[0].image == image_for(Defaults().image, None)


@pytest.mark.parametrize(
    "fields", [{"python": "3.12"}, NO_CLOUD, {"commands": ["echo $DSTACK_NODE_RANK"]}], ids=str
)
def test_a_file_of_dstack_gets_its_names_in_the_environment(fields: dict[str, Any]) -> None:
    assert planned(task(**fields)).specs[0].env_style == (EnvStyle.DSTACK,)


def test_fields_of_clouds_are_told_and_change_nothing() -> None:
    translation = translated(task(image="busybox", **NO_CLOUD))
    assert translation.notes == (
        "without meaning on your own nodes: spot_policy, backends, max_price",
    )
    assert parse(task(image="busybox", **NO_CLOUD)) == parse(
        task(image="busybox", env_style=["dstack"])
    )


def test_a_relative_working_folder_counts_from_the_repository() -> None:
    data = translated(task(image="i", working_dir="examples/a", repos=[".", "b:/b"])).data
    assert (data["working_dir"], data["repos"]) == ("/workflow/examples/a", [".:/workflow", "b:/b"])


def test_files_go_to_the_home_of_root() -> None:
    data = translated(task(image="i", files=["a:~/b", "~/c/d", "e"])).data
    assert data["files"] == ["a:/root/b", "~/c/d:/root/c/d", "e"]


def test_groups_without_names_get_some_and_their_ports_belong_to_the_run() -> None:
    groups = [{"commands": ["a"], "ports": [8000]}, {"name": "b", "commands": ["b"]}]
    data = translated({"type": "task", "image": "i", "groups": groups}).data
    assert [group["name"] for group in data["groups"]] == ["group0", "b"]
    assert data["ports"] == [8000]


def test_the_commands_are_arguments_of_an_entrypoint() -> None:
    (spec,) = planned(task(image="i", entrypoint="python -m x", commands=["--a", "1"])).specs
    assert (spec.entrypoint, spec.commands) == (("python", "-m", "x", "--a", "1"), ())


def test_a_gateway_of_another_project_is_named_without_it() -> None:
    written = {"type": "service", "image": "i", "port": 80, "gateway": "team-a/my-gateway"}
    translation = translated(written)
    assert translation.data["gateway"] == "my-gateway"
    assert translation.notes == ("gateway my-gateway, without a project",)
    assert parse(written).type == "service"


def test_a_replica_group_that_names_a_variable_of_dstack_gets_them() -> None:
    groups = [{"nodes": 2, "commands": ["echo $DSTACK_NODE_RANK"]}]
    written = {"type": "service", "image": "i", "port": 80, "replicas": groups}
    assert planned(written).specs[0].env_style == (EnvStyle.DSTACK,)


def test_nvcc_is_the_operators_image_and_python_comes_beside_it() -> None:
    written = task(nvcc=True, python=3.1)
    defaults = Defaults(nvcc_image="team/cuda:13-devel")
    (spec,) = to_run(parse(written), written, defaults).specs
    assert (spec.image, spec.python, spec.env) == ("team/cuda:13-devel", "3.10", {})
    assert spec.env_style == (EnvStyle.DSTACK,)


def test_docker_in_a_job_is_started_first() -> None:
    (spec,) = planned(task(docker=True, commands=["docker ps"])).specs
    assert spec.commands == ("start-dockerd", "docker ps")
    assert spec.container.privileged


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"nvcc": True, "python": "3.12"}, "-devel image"),
        ({"nvcc": True, "image": "i"}, "and image chooses another"),
        ({"resources": {"gpu": "amd:MI300X"}}, "GPUs of amd are not supported"),
        ({"resources": {"cpu": "arm:4"}}, "is not a number of CPU cores"),
    ],
    ids=str,
)
def test_what_cannot_mean_the_same_is_refused_with_a_hint(
    fields: dict[str, Any], hint: str
) -> None:
    assert hint in (refusal(task(**fields)) or "")


@pytest.mark.parametrize(
    ("written", "count", "names", "memory"),
    [
        ("nvidia", 1, (), 0),
        ("nvidia:24GB..48GB", 1, (), 24),
        ("NVIDIA:A100,H100:40GB..:2..4", 2, ("A100", "H100"), 40),
    ],
)
def test_forms_of_gpus(written: str, count: int, names: tuple[str, ...], memory: int) -> None:
    (spec,) = planned(
        task(resources={"gpu": written, "cpu": "x86:4..", "memory": "8GB..16GB"})
    ).specs
    assert spec.resources.gpu == need(count, *names, memory=memory)
    assert (spec.resources.cpu, spec.resources.memory) == (4.0, 8 * GB)
