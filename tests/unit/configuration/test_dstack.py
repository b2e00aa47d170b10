"""Files of dstack mean here what they mean there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.lifecycle.model import GpuNeed, JobSpec, Operator, RetryEvent
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.plan import Defaults, to_run
from fairlead.configuration.text.dstack import marked, translated
from fairlead.configuration.text.environment import with_environment
from fairlead.configuration.values.images import NEWEST_PYTHON, image_for
from fairlead.model.needs import RentLimits, SpotPolicy
from fairlead.model.service import ProbeKind, RateLimitKey
from fairlead.submission import read_document
from fairlead.wire.gpu_names import GpuVendor
from fairlead.wire.job import EnvStyle
from tests.unit.configuration.dstack_corpus import (
    SHAPES,
    environment,
    figures,
    meant_there,
    notes_of,
    planned,
    refusal,
)

PAGE = Path(__file__).parents[3] / "docs" / "coming-from-dstack.md"
TASKS = [shape for shape in SHAPES if shape.get("type") == "task"]
OF_CLOUDS = {"spot_policy": "on-demand", "backends": ["aws"], "max_price": 2.5}
GB = 10**9


def need(count: int, *names: str, memory: int = 0) -> GpuNeed:
    return GpuNeed(count=count, names=names, min_memory=memory * GB)


def of_amd(count: int, *names: str, memory: int = 0) -> GpuNeed:
    return msgspec.structs.replace(need(count, *names, memory=memory), vendor=GpuVendor.AMD)


def task(**fields: Any) -> dict[str, Any]:
    return {"type": "task", "commands": ["true"], **fields}


def service(**fields: Any) -> dict[str, Any]:
    return {"type": "service", "image": "i", "port": 80, **fields}


def job(**fields: Any) -> JobSpec:
    return planned(task(**fields)).specs[0]


def ours(**fields: Any) -> JobSpec:
    """The job of a file with a name of no system."""
    written = task(**fields)
    return planned(written, "job.yaml").specs[0]


def why_refused(written: dict[str, Any]) -> str:
    return refusal(written) or ""


# -- the corpus -----------------------------------------------------------------------------


def test_no_file_of_the_corpus_differs_without_a_word_and_the_page_has_the_figures() -> None:
    found = figures()

    assert found.silent == ()
    assert "\n".join(found.lines()) in PAGE.read_text()


@pytest.mark.parametrize("shape", TASKS, ids=str)
def test_a_task_of_the_corpus_keeps_its_meaning(shape: dict[str, Any]) -> None:
    if refusal(shape) is not None:
        return
    plan, there = planned(shape), meant_there(shape)
    groups = shape.get("groups") or [shape]
    assert [one.group.nodes for one in plan.groups] == list(there.nodes)
    for written, made in zip(groups, plan.groups, strict=True):
        needed, asked = made.spec.resources, {**(shape.get("resources") or shape), **written}
        asked = {**asked, **(written.get("resources") or {})}
        if "python" in shape:
            assert made.spec.python == str(shape["python"])
        if "python" in shape and "nvcc" not in shape:
            assert f"python{shape['python']}-" in made.spec.image
        elif "image" not in shape and not shape.get("nvcc") and not shape.get("docker"):
            assert f"python{NEWEST_PYTHON}-" in made.spec.image
            assert made.spec.env["UV_SYSTEM_PYTHON"] == "1"
        if not shape.get("docker") and "entrypoint" not in shape:
            assert list(made.spec.commands) == written.get("commands", [])
        assert {name: made.spec.env[name] for name in environment(shape)} == environment(shape)
        assert needed.whole_node is (sum(there.nodes) > 1)
        assert needed.gpu == (GPUS[json.dumps(asked["gpu"])] if "gpu" in asked else need(0))
        if "shm_size" in asked:
            assert needed.shm_size == int(asked["shm_size"].removesuffix("GB")) * GB
        assert made.spec.container.privileged is bool(shape.get("privileged") or "docker" in shape)
    assert plan.policy.stop_criteria == shape.get("stop_criteria", "all-done")
    assert plan.policy.startup_order == shape.get("startup_order", "any")


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
        ("A100:80GB:1", need(1, "A100", memory=80)),
        ("A100:80GB:8", need(8, "A100", memory=80)),
        ("A100:8", need(8, "A100")),
        ("H100:1", need(1, "H100")),
        ("H100:1..2", need(1, "H100")),
        ("H100:4", need(4, "H100")),
        ("H100:8", need(8, "H100")),
        ("H200", need(1, "H200")),
        ("GB10", need(1, "GB10")),
        ("GH200:1", need(1, "GH200")),
        ("nvidia:B200:8", need(8, "B200")),
        ("nvidia:4..8", need(4)),
        ("MI300X", of_amd(1, "MI300X")),
        ("MI300X:1", of_amd(1, "MI300X")),
        ("MI300X:4", of_amd(4, "MI300X")),
        ("MI300X:4..", of_amd(4, "MI300X")),
        ("MI300X:8", of_amd(8, "MI300X")),
        ("mi300x:8", of_amd(8, "mi300x")),
        ({"memory": "24GB..", "count": "1.."}, need(1, memory=24)),
    ]
}


# -- which files are dstack's ---------------------------------------------------------------


@pytest.mark.parametrize("name", [".dstack.yml", "train.dstack.yml", "a/b.dstack.yaml"])
def test_a_file_is_of_dstack_by_its_name(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("type: task\ncommands: [a]\n")

    assert read_document(file).data == task(commands=["a"], dialect="dstack")


@pytest.mark.parametrize(
    "fields",
    [{"utilization_policy": {}}, {"commands": ["echo $DSTACK_NODE_RANK"]}, {"docker": True}],
    ids=str,
)
def test_a_file_is_of_dstack_by_what_only_dstack_has(fields: dict[str, Any]) -> None:
    made = planned(task(**fields), "job.yaml")

    assert made.policy.priority == 0
    assert made.specs[0].env_style == (EnvStyle.DSTACK,)


@pytest.mark.parametrize(
    ("fields", "file"),
    [
        ({}, "job.yaml"),
        ({"commands": ["echo $DSTACK_NODE_RANK"], "env_style": ["dstack"]}, "job.yaml"),
        ({"dialect": "fairlead", "docker": True}, "job.dstack.yml"),
    ],
)
def test_any_other_file_has_our_defaults(fields: dict[str, Any], file: str) -> None:
    made = planned(task(**fields), file)

    assert made.policy.priority == Defaults().priority
    assert made.policy.retry.on_events == {RetryEvent.INTERRUPTION}
    assert made.specs[0].resources.memory == Defaults().resources.memory


def test_tags_are_left_out_of_a_file_of_dstack_and_make_none_of_it() -> None:
    assert "without meaning on your own nodes: tags" in notes_of(task(tags={"a": "b"}))
    with pytest.raises(ConfigurationError, match="tags: is not a field"):
        ours(tags={"a": "b"})


def test_a_name_of_dstack_says_nothing_of_a_fleet() -> None:
    fleet = {"type": "fleet", "name": "a"}
    assert marked(fleet, "fleet.dstack.yml") is fleet


def test_a_form_of_dstack_in_our_own_file_brings_its_variables_and_no_more() -> None:
    assert ours(python="3.12").env_style == (EnvStyle.DSTACK,)
    assert ours(python="3.12").resources.memory == Defaults().resources.memory


# -- what only a file of dstack's means -----------------------------------------------------


def test_a_file_of_dstack_asks_for_dstacks_least_and_follows_the_node_above_it() -> None:
    plain, with_gpu, exact = job(), job(resources={"gpu": 1}), job(resources={"memory": "4GB"})

    assert (plain.resources.cpu, plain.resources.memory) == (2.0, 8 * GB)
    assert plain.resources.disk == 100 * GB
    assert with_gpu.resources.unset == plain.resources.unset == ("cpu", "memory", "shm_size")
    assert exact.resources.memory == 4 * GB


def test_an_operators_larger_defaults_hold_for_a_file_of_dstack_too() -> None:
    written = {**task(), "dialect": "dstack"}
    large = Defaults(resources=Defaults().resources.__class__(cpu=8.0, memory=64 * GB))
    (spec,) = to_run(parse(written), written, large).specs
    assert (spec.resources.cpu, spec.resources.memory) == (8.0, 64 * GB)


def test_a_file_of_dstack_has_its_variables_whatever_it_runs() -> None:
    assert job(image="i").env_style == (EnvStyle.DSTACK,)


def test_nothing_is_tried_again_in_a_file_of_dstack_that_does_not_ask() -> None:
    assert planned(task()).policy.retry.on_events == frozenset()
    assert planned({"type": "dev-environment"}).policy.retry.on_events == frozenset()


def test_a_service_of_dstack_goes_on_and_says_so() -> None:
    assert RetryEvent.ERROR in planned(service()).policy.retry.on_events
    assert "a replica that ends is started again (dstack's way: retry: false)" in notes_of(
        service()
    )
    assert planned(service(retry=False)).policy.retry.on_events == frozenset()


@pytest.mark.parametrize(
    ("retry", "waits", "tries"),
    [
        (None, None, None),
        (False, None, None),
        (True, 3600.0, 3600.0),
        ({"on_events": ["no-capacity"], "duration": "48h"}, 172800.0, 172800.0),
        ({"on_events": ["no-capacity", "error"]}, 3600.0, 3600.0),
        ({"on_events": ["error"], "duration": "2h"}, None, 7200.0),
    ],
    ids=str,
)
def test_a_file_of_dstack_waits_as_long_as_its_retry_says(
    retry: object, waits: float | None, tries: float | None
) -> None:
    written = task(retry=retry)
    made = planned(written).policy

    assert (made.scheduling_timeout, made.retry.duration) == (waits, tries)
    told = "waits while no node is free, where dstack fails at once" in notes_of(written)
    assert told is (waits is None)


def test_a_model_of_dstack_without_probes_is_asked_itself() -> None:
    serves = planned(service(model="org/m")).specs[0].serves
    assert serves is not None
    (probe,) = serves.probes
    assert (probe.kind, probe.method, probe.url) == (
        ProbeKind.HTTP,
        "POST",
        "/v1/chat/completions",
    )
    assert json.loads(probe.body or "")["model"] == "org/m"
    assert probe.timeout == 30.0


@pytest.mark.parametrize(
    ("fields", "urls"),
    [
        ({"model": {"name": "m", "prefix": "/api/"}}, ["/api/chat/completions"]),
        ({"model": "m", "probes": [{"type": "http", "url": "/ok"}]}, ["/ok"]),
        ({}, ["/"]),
    ],
    ids=str,
)
def test_probes_of_dstack(fields: dict[str, Any], urls: list[str]) -> None:
    serves = planned(service(**fields)).specs[0].serves
    assert serves is not None
    assert [one.url for one in serves.probes] == urls


def test_instances_are_a_constraint() -> None:
    spec = job(instances=["gpu-1", {"name": "gpu-2"}, {"hostname": "10.0.0.3"}])
    (constraint,) = spec.constraints
    assert (constraint.attribute, constraint.operator) == ("node", Operator.IN)
    assert constraint.values == ("gpu-1", "gpu-2", "10.0.0.3")


def test_an_amount_with_an_upper_end_alone_is_left_out_and_told() -> None:
    written = task(resources={"cpu": "..64", "memory": {"max": "1TB"}, "gpu": 1})
    assert planned(written).specs[0].resources.unset == ("cpu", "memory", "shm_size")
    assert {"cpu: ..64 sets no limit", "memory: ..1TB sets no limit"} <= set(notes_of(written))


def test_the_lower_end_of_a_range_is_told() -> None:
    written = task(resources={"cpu": {"min": 4}, "memory": "8GB..", "gpu": {"count": {"min": 2}}})
    spec = planned(written).specs[0]
    assert (spec.resources.cpu, spec.resources.gpu.count) == (4.0, 2)
    assert {"cpu", "memory"} <= set(spec.resources.unset)
    ours_ = ours(resources={"cpu": "4..", "memory": "8GB..", "gpu": 2})
    assert ours_.resources.unset == ("shm_size",)
    exact = job(resources={"cpu": "4..8", "memory": "8GB", "gpu": 2})
    assert exact.resources.unset == ("shm_size",)
    assert "of a range the lower end (gpu: {count: 2..})" in notes_of(written)
    alone = task(resources={"cpu": "4..", "memory": "8GB..16GB"})
    assert "of a range the lower end (cpu: 4.., memory: 8GB..16GB)" in notes_of(alone)
    assert planned(alone).specs[0].resources.unset == ("shm_size",)
    whole = planned(task(nodes=2, resources={"cpu": "4..", "memory": "8GB"})).specs[0]
    assert whole.resources.unset == ("cpu", "shm_size")


def test_a_named_volume_is_told_and_never_optional() -> None:
    written = task(image="i", volumes=[{"name": "v", "path": "/v", "optional": True}])
    assert planned(written).specs[0].volumes[0].source == "v"
    assert "a named volume is a folder of each node, not one disk for all nodes" in notes_of(
        written
    )
    assert notes_of(task(image="i", volumes=["v:/v"]))[-1].startswith("a named volume")
    assert "asks for 100GB of disk, as in dstack" in notes_of(written)
    assert not any("disk" in note for note in notes_of(task(resources={"disk": "1GB"}))[:2])
    assert not any("volume" in note for note in notes_of(task(image="i", volumes=["/v:/v"])))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "the image is the controller's default one, not dstack's"),
        ({"nvcc": True}, "nvcc: the image that the operator names"),
        ({"image": "i"}, None),
        ({"docker": True}, "docker: image dstackai/dind, privileged where the node's operator"),
    ],
    ids=str,
)
def test_an_image_in_place_of_dstacks_is_told(fields: dict[str, Any], told: str | None) -> None:
    found = [note for note in notes_of(task(**fields)) if "image" in note]
    assert (found or [""])[0].startswith(told or "")
    assert len(found) == (told is not None)


# -- forms that are understood in every file ------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "ranges"),
    [
        ({"min": 1, "max": 4}, [(1, 4)]),
        ([{"count": {"min": 0, "max": 2}}, {"count": 1}], [(0, 2), (1, 1)]),
        ([{"count": "1..2"}], [(1, 2)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("field", ["replicas", "replica_groups"])
def test_both_forms_of_replicas(
    field: str, replicas: object, ranges: list[tuple[int, int]]
) -> None:
    scaling = {"metric": "rps", "target": 1}
    if isinstance(replicas, list):
        replicas = [
            one if one["count"] == 1 else {**one, "scaling": scaling, "commands": ["a"]}
            for one in replicas
        ]
        written = service(**{field: replicas})
    else:
        written = service(scaling=scaling, **{field: replicas})
    made = planned(written).service
    assert made is not None
    assert [(one.least, one.most) for one in made.groups] == ranges


@pytest.mark.parametrize("key", [{"type": "ip_address"}, "ip_address", {"type": "ip"}])
def test_a_rate_limit_by_address(key: object) -> None:
    made = planned(service(rate_limits=[{"rps": 4, "key": key}])).service
    assert made is not None
    assert made.rate_limits[0].key is RateLimitKey.IP


@pytest.mark.parametrize(
    "gateway", ["team-a/my-gateway", {"name": "my-gateway"}, {"project": "a", "name": "my-gateway"}]
)
def test_a_gateway_of_another_project_is_named_without_it(gateway: object) -> None:
    written = service(gateway=gateway)
    assert planned(written).gateway == "my-gateway"
    assert "gateway my-gateway, without a project" in notes_of(written)


def test_fleets_of_another_project_are_named_without_it() -> None:
    assert job(fleets=["a", "team/b", {"project": "team", "name": "c"}]).fleets == ("a", "b", "c")


def test_a_variable_of_dstack_fills_in_a_login() -> None:
    auth = {"username": "$oauthtoken", "password": "${{ env.NGC_API_KEY }}"}
    written = task(image="i", env=["NGC_API_KEY"], registry_auth=auth)
    (spec,) = planned(written).specs
    assert spec.registry_auth is not None
    assert spec.registry_auth.password == "v"
    own = with_environment({**written, "env": {"NGC_API_KEY": "mine"}}, {}, {})
    assert isinstance(own, dict)
    assert own["registry_auth"]["password"] == "mine"


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [
        ("commands", "a ${{ env.MODEL }}", "write $MODEL"),
        ("image", "i:${{ env.TAG }}", "write the value of TAG itself"),
        ("commands", "a ${{ secrets.A }}", "set A to ${{ secrets.A }} in env, and write $A here"),
        ("commands", "${{ run.args }}", "write $ARGS, name ARGS in env, and give it with `-e ARGS"),
        ("commands", "echo ${{ dstack.node_rank }}", "write $FAIRLEAD_NODE_RANK"),
        ("commands", "echo ${{ dstack.job_num }}", "write $FAIRLEAD_JOB_INDEX"),
        ("volumes", {"name": "v-${{ dstack.node_rank }}", "path": "/v"}, "leave it out, since"),
        ("volumes", "v-${{ dstack.job_num }}:/v", "leave it out, since each node has a folder"),
    ],
    ids=str,
)
def test_each_expression_is_answered_with_what_to_write_instead(
    field: str, value: object, instead: str
) -> None:
    written = value if field == "image" else [value]
    assert f": {instead}" in why_refused(task(**{field: written}))


def test_a_replica_group_may_hold_a_stored_secret() -> None:
    groups = [{"commands": ["a"], "env": {"A": "${{ secrets.HF }}"}}]
    assert planned(service(replicas=groups)).specs[0].env["A"] == "${{ secrets.HF }}"


def test_a_file_without_dstacks_own_forms_stays_as_it_is() -> None:
    own = task(resources={"gpu": 1}, constraints=["rack EQ r1"])
    assert translated(own).data == own
    assert planned(own, "job.yaml").specs[0].image == image_for(Defaults().image, None)


def test_fields_of_clouds_limit_what_is_rented_in_any_file() -> None:
    made = planned(task(image="busybox", **OF_CLOUDS), "job.yaml")
    assert made.specs[0].rent == RentLimits(
        spot_policy=SpotPolicy.ON_DEMAND, backends=("aws",), max_price=2.5
    )
    assert made.specs[0].env_style == ()


@pytest.mark.parametrize(("written", "seconds"), [("5m", 300.0), ("off", None), (-1, None)])
def test_an_idle_duration_may_be_dstacks_word_for_never(
    written: object, seconds: float | None
) -> None:
    made = planned(task(image="busybox", idle_duration=written))
    assert made.specs[0].rent.idle_duration == seconds


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


def test_a_replica_group_that_names_a_variable_of_dstack_gets_them() -> None:
    groups = [{"nodes": 2, "commands": ["echo $DSTACK_NODE_RANK"]}]
    assert planned(service(replicas=groups), "job.yaml").specs[0].env_style == (EnvStyle.DSTACK,)


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
    ("written", "hint"),
    [
        (task(nvcc=True, image="i"), "and image chooses another"),
        (task(nvcc=True, resources={"gpu": "MI300X"}), "asks for GPUs of another vendor"),
        (task(resources={"gpu": "intel:gaudi2"}), "GPUs of intel are not supported"),
        (task(resources={"gpu": "v5litepod-8"}), "v5litepod-8 is an accelerator of Google"),
        (task(resources={"gpu": "gaudi2:8"}), "gaudi2 is an accelerator of Intel"),
        (task(resources={"gpu": "tt-galaxy-wh:32"}), "is an accelerator of Tenstorrent"),
        (task(resources={"gpu": {"name": ["H100", "mi210"]}}), "mi210 is a GPU of AMD and H100 is"),
        (task(resources={"gpu": "nvidia:MI300X"}), "MI300X is a GPU of AMD, not of NVIDIA"),
        (task(resources={"gpu": {"vendor": "tpu"}}), "nodes have GPUs of NVIDIA or AMD"),
        (task(resources={"gpu": {"vendor": "x"}}), "'x' is not a vendor of GPUs"),
        (
            task(resources={"gpu": {"name": "MI300X", "compute_capability": 9.0}}),
            "is a measure of NVIDIA",
        ),
        (task(resources={"cpu": "arm:4"}), "nodes are of x86"),
        (task(dstack=True), "reaches no server of dstack"),
        (task(instances=[{"fleet": "f", "instance": 3}]), "constraints: [node EQ gpu-1]"),
        (service(schedule={"cron": "0 8 * * *"}), "a service starts when it is applied"),
        (service(router={"type": "sglang"}), "the workers as one service"),
        (service(replicas=[{"commands": ["a"], "router": {"type": "sglang"}}]), "the router as"),
    ],
    ids=str,
)
def test_what_cannot_mean_the_same_is_refused_with_a_hint(
    written: dict[str, Any], hint: str
) -> None:
    assert hint in why_refused(written)


def test_nvcc_is_refused_where_the_operator_names_no_image() -> None:
    with pytest.raises(ConfigurationError, match="-devel image"):
        planned(task(nvcc=True, python="3.12"), defaults=Defaults())


@pytest.mark.parametrize(
    ("written", "count", "names", "memory"),
    [
        ("amd", 1, (), 0),
        ("AMD:8", 8, (), 0),
        ("amd:MI300X:2", 2, ("MI300X",), 0),
        ("MI300X:8", 8, ("MI300X",), 0),
        ("amd:192GB:8", 8, (), 192),
        ("MI300X,MI325X:192GB..:4", 4, ("MI300X", "MI325X"), 192),
        ({"vendor": "amd", "name": "W7900", "count": {"min": 2}}, 2, ("W7900",), 0),
        ({"name": ["MI300X"], "memory": "192GB"}, 1, ("MI300X",), 192),
    ],
    ids=str,
)
def test_a_vendor_or_the_name_of_its_gpu_asks_for_amd(
    written: object, count: int, names: tuple[str, ...], memory: int
) -> None:
    (spec,) = planned(task(image="rocm/pytorch", resources={"gpu": written})).specs
    assert spec.resources.gpu == of_amd(count, *names, memory=memory)


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
