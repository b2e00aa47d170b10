"""Tasks of SkyPilot as tasks here: each field becomes one, or is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.text.environment import with_environment
from fairlead.configuration.text.skypilot import convert


def read(**fields: Any) -> dict[str, Any]:
    """Return what the fields become; it is accepted as a configuration."""
    configuration = convert({"run": "true", **fields}).configuration
    parse(with_environment(configuration, {"HF_TOKEN": "x"}, {}))
    expected = {"type": "task", "env_style": ["skypilot"], "commands": ["true"]}
    return {name: one for name, one in configuration.items() if expected.get(name, object()) != one}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"name": "My_task"}, {"name": "my-task"}),
        ({"num_nodes": 2}, {"nodes": 2}),
        ({"num_nodes": 1}, {}),
        ({"resources": {"accelerators": "H100:8"}}, {"resources": {"gpu": "H100:8"}}),
        ({"resources": {"accelerators": {"A100": 1}}}, {"resources": {"gpu": "A100:1"}}),
        ({"resources": {"accelerators": "L4"}}, {"resources": {"gpu": "L4:1"}}),
        ({"resources": {"gpus": "H100:8"}}, {"resources": {"gpu": "H100:8"}}),
        ({"resources": {"max_hourly_cost": 10.5}}, {"max_price": 10.5}),
        (
            {"resources": {"memory": "512mb", "disk_size": "1TB", "cpus": "0.5"}},
            {"resources": {"cpu": 0.5, "memory": "512MB", "disk": "1TB"}},
        ),
        ({"resources": {"any_of": [{"infra": "aws"}, {"infra": "gcp"}]}}, {}),
        (
            {"resources": {"cpus": "4+", "memory": 32, "disk_size": 100, "cloud": "aws"}},
            {"resources": {"cpu": 4.0, "memory": "32GB", "disk": "100GB"}},
        ),
        ({"resources": {"image_id": "docker:ubuntu:24.04"}}, {"image": "ubuntu:24.04"}),
        ({"resources": {"ports": 8080}}, {"ports": [8080]}),
        (
            {"envs": {"EPOCHS": 3, "HF_TOKEN": None}},
            {"env": {"EPOCHS": "3", "HF_TOKEN": "${HF_TOKEN}"}},
        ),
        ({"setup": "pip install torch\n"}, {"setup": ["pip install torch"]}),
        ({"run": "a\nb\n"}, {"commands": ["a\nb"]}),
        (
            {"file_mounts": {"/data": {"source": "s3://my-data/x", "mode": "COPY"}}},
            {"buckets": [{"url": "s3://my-data/x", "path": "/data"}]},
        ),
    ],
)
def test_a_field_becomes_one_here(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert read(**fields) == expected


def test_folders_of_this_machine_are_sent() -> None:
    converted = convert({"run": "x", "workdir": ".", "file_mounts": {"/remote": "./local"}})
    assert converted.configuration["repos"] == ["."]
    assert converted.configuration["files"] == ["./local:/remote"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"secrets": {"A": None}}, "secrets"),
        ({"service": {}}, "service"),
        ({"frob": 1}, "frob"),
        ({"resources": {"accelerators": ["H100:1", "A100:1"]}}, "resources.accelerators"),
        ({"resources": {"frob": 1}}, "resources.frob"),
        (
            {"resources": {"any_of": [{"infra": "aws", "accelerators": "H100"}]}},
            "resources.any_of[0].accelerators",
        ),
        ({"resources": {"ordered": ["aws"]}}, "resources.ordered[0]"),
        ({"resources": {"cpus": "4-8"}}, "resources.cpus"),
        ({"resources": {"cpus": "4GB"}}, "resources.cpus"),
        ({"resources": {"memory": "lots"}}, "resources.memory"),
        ({"resources": {"ports": "http"}}, "resources.ports"),
        ({"resources": {"image_id": "ami-123"}}, "resources.image_id"),
        ({"resources": {"ports": "8000-8010"}}, "resources.ports"),
        ({"file_mounts": {"/data": "gs://bucket"}}, "file_mounts./data"),
        ({"file_mounts": {"/data": {"source": "s3://b", "mode": "MOUNT"}}}, "file_mounts./data"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_its_field(
    fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(**fields)
    assert caught.value.field == field


def test_what_is_left_out_is_told() -> None:
    notes = convert({"run": "x", "resources": {"use_spot": True, "cpus": "4+"}}).notes
    assert [note.split(" ")[0] for note in notes] == ["resources.use_spot", "resources.cpus:"]
