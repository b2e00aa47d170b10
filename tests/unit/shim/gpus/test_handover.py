"""A container gets its own GPUs, by the best way that the node has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shim.engines.docker.handover import Means, Way, hand_over, means_of
from shim.errors import EngineError
from shim.gpus.nvidia.nvml import NVIDIA
from tests.unit.shim.gpus.parts import gpu, mig

UNITS = (gpu(0), gpu(1))


def node(folder: Path, *names: str) -> Means:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return Means(delivery=NVIDIA, dev=folder)


def test_cdi_comes_first_and_names_the_gpu_by_its_uuid() -> None:
    means = Means(delivery=NVIDIA, cdi=frozenset({"GPU-1", "0", "1", "all"}), hook=True)
    given = hand_over(["GPU-1"], UNITS, False, means)
    assert given.way is Way.CDI
    assert given.host_config == {
        "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-1"]}]
    }


def test_a_spec_that_only_has_indexes_is_asked_by_index() -> None:
    given = hand_over(["GPU-1"], UNITS, False, Means(delivery=NVIDIA, cdi=frozenset({"0", "1"})))
    assert given.host_config["DeviceRequests"][0]["DeviceIDs"] == ["nvidia.com/gpu=1"]


def test_a_mig_instance_is_never_handed_over_as_its_whole_gpu() -> None:
    means = Means(delivery=NVIDIA, cdi=frozenset({"0"}), hook=True)
    assert hand_over(["MIG-0-3"], [mig(0, 3)], False, means).way is Way.HOOK


def test_a_spec_without_one_of_the_gpus_is_not_used() -> None:
    means = Means(delivery=NVIDIA, cdi=frozenset({"GPU-0"}), hook=True)
    assert hand_over(["GPU-0", "GPU-1"], UNITS, False, means).way is Way.HOOK


def test_the_hook_is_asked_by_uuid() -> None:
    given = hand_over(["GPU-0", "GPU-1"], UNITS, False, Means(delivery=NVIDIA, hook=True))
    assert given.host_config == {
        "DeviceRequests": [{"DeviceIDs": ["GPU-0", "GPU-1"], "Capabilities": [["gpu"]]}]
    }


def test_without_cdi_and_hook_the_device_files_are_given(tmp_path: Path) -> None:
    means = node(tmp_path, "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")
    given = hand_over(["GPU-1"], UNITS, False, means)
    inside = [device["PathInContainer"] for device in given.host_config["Devices"]]
    assert inside == ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"]


def test_a_mig_instance_comes_with_its_capability_files(tmp_path: Path) -> None:
    means = node(tmp_path, "nvidia0", "nvidia-caps/nvidia-cap3", "nvidia-caps/nvidia-cap4")
    given = hand_over(["MIG-0-3"], [mig(0, 3)], False, means)
    inside = [device["PathInContainer"] for device in given.host_config["Devices"]]
    assert inside == ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3"]


def test_a_device_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="/dev/nvidia1 is not on this node"):
        hand_over(["GPU-1"], UNITS, False, node(tmp_path, "nvidiactl"))


def test_a_gpu_that_is_gone_is_not_handed_over_by_files(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="GPU-9 are not known"):
        hand_over(["GPU-9"], UNITS, False, node(tmp_path))


def test_infiniband_is_given_when_asked_and_not_otherwise(tmp_path: Path) -> None:
    means = node(tmp_path, "infiniband/uverbs0", "infiniband/rdma_cm")
    devices = hand_over([], (), True, means).host_config["Devices"]
    assert [device["PathInContainer"] for device in devices] == [
        "/dev/infiniband/rdma_cm",
        "/dev/infiniband/uverbs0",
    ]
    assert hand_over([], (), False, means).host_config == {}


def test_a_device_that_the_request_has_already_stays_in_it(tmp_path: Path) -> None:
    means = node(tmp_path, "infiniband/uverbs0", "fuse")
    fuse = {"PathOnHost": str(tmp_path / "fuse"), "PathInContainer": "/dev/fuse"}
    given = hand_over([], (), True, means, [fuse])
    inside = [device["PathInContainer"] for device in given.host_config["Devices"]]
    assert inside == ["/dev/fuse", "/dev/infiniband/uverbs0"]


def test_infiniband_that_the_node_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no /dev/infiniband"):
        hand_over([], (), True, node(tmp_path))


def test_an_image_that_asks_for_all_gpus_gets_none_by_nvidias_default_runtime() -> None:
    """CUDA images say NVIDIA_VISIBLE_DEVICES=all, and that runtime believes them."""
    means = Means(delivery=NVIDIA, hook=True, hook_by_default=True)
    assert hand_over([], (), False, means).environment == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert hand_over(["GPU-0"], UNITS, False, means).environment == {}


YAML = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: GPU-1\n- name: '0'\n"
JSON = json.dumps({"kind": "nvidia.com/gpu", "devices": [{"name": "GPU-1"}, {"name": "0"}]})


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("nvidia.yaml", YAML, {"GPU-1", "0"}),
        ("nvidia.json", JSON, {"GPU-1", "0"}),
        ("other.yaml", YAML.replace("nvidia.com", "vendor.com"), set()),
        ("torn.yaml", "kind: [", set()),
        ("list.json", "[]", set()),
        ("notes.txt", YAML, set()),
    ],
)
def test_cdi_specs_are_read_where_the_engine_reads_them(
    tmp_path: Path, name: str, text: str, found: set[str]
) -> None:
    (tmp_path / name).write_text(text)
    info: dict[str, Any] = {"CDISpecDirs": [str(tmp_path), str(tmp_path / "none")]}
    assert means_of(info, NVIDIA).cdi == found


def test_an_engine_without_cdi_is_not_asked_for_it() -> None:
    means = means_of({"Runtimes": {"runc": {}, "nvidia": {}}, "DefaultRuntime": "nvidia"}, NVIDIA)
    assert (means.cdi, means.hook, means.hook_by_default) == (frozenset(), True, True)
