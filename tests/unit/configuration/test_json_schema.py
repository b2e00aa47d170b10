"""The JSON Schema accepts what the controller accepts, and finds what an editor can find."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fairlead.configuration.json_schema import document
from fairlead.configuration.parse import parse
from fairlead.configuration.text.environment import with_environment
from fairlead.configuration.text.source import load, read
from tests.compare import WIDE
from tests.unit.configuration.dstack_corpus import SHAPES, as_sent, refusal

PROJECT = Path(__file__).parents[3]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
EXAMPLES = sorted((PROJECT / "examples").glob("*.yaml"))
VALIDATOR = jsonschema.Draft202012Validator(document())


def faults(data: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(data)]


TASK = {"type": "task", "commands": ["echo hi"]}
ACCEPTED: list[dict[str, Any]] = [
    {"resources": {"memory": "8GB..", "cpu": "2..8", "gpu": "A100,H100:80GB:2", "disk": "1.5 TB"}},
    {"resources": {"gpu": {"name": ["A100"], "count": "2..", "compute_capability": 8.0}}},
    {"entrypoint": "python -m train", "commands": []},
    {"max_duration": False, "scheduling_timeout": "off", "stop_duration": "1h30m"},
    {"max_duration": 90, "retry": {"duration": "2h", "on_events": ["error"]}},
    {"schedule": {"cron": "0 8 * * 1-5"}},
    {"schedule": ["0 8 * * *"], "retry": True},
    {"user": 1000, "ssh": False, "env": ["A=1"], "fleets": ["a", "b"]},
    {"on_disconnect": {"stop_after": "5m"}, "gang": {"size": 2}, "nodes": 3},
    {"constraints": ["region EQ a", {"attribute": "b", "operator": "IN", "values": ["x", 1]}]},
    {"volumes": [{"path": "/scratch", "tmpfs": "1GiB"}, "cache:/cache:ro"]},
    {"repos": [{"url": "https://example.com/a.git", "branch": "main", "path": "/code"}]},
    {"groups": [{"name": "ps", "nodes": 1, "commands": ["a"]}], "commands": []},
    {"python": 3.12, "docker": False, "spot_policy": "auto", "utilization_policy": {}},
    {"groups": [{"nodes": 1, "commands": ["a"], "ports": [80]}], "commands": []},
    {"working_dir": "code", "resources": {"cpu": "x86:4..", "gpu": "nvidia:24GB..48GB"}},
    {"dialect": "dstack", "resources": {"cpu": "..64", "memory": {"min": "8GB", "max": None}}},
    {"docker": True, "fleets": ["a", {"name": "b", "project": "c"}], "instances": ["gpu-1"]},
    {"resources": {"cpu": {"arch": "x86", "count": 4}, "gpu": {"vendor": "nvidia", "count": 2}}},
    {"ulimits": {"nofile": "1024:4096", "memlock": "unlimited"}, "cap_add": ["SYS_PTRACE"]},
]
DEV_ENVIRONMENT = {"type": "dev-environment"}
ACCEPTED_OF_DEV_ENVIRONMENTS: list[dict[str, Any]] = [
    {"ide": "vscode", "init": ["a"], "home": True, "name": "desk"},
    {"ide": "jupyter", "version": 4.4, "home": "/shared/ada:/root", "inactivity_duration": "off"},
    {"python": "3.12", "schedule": {"cron": "0 8 * * 1-5"}, "retry": True, "ports": [6006]},
]
SERVICE = {"type": "service", "image": "busybox", "port": 8000}
ACCEPTED_OF_SERVICES: list[dict[str, Any]] = [
    {"port": "80:8000", "replicas": 2, "auth": False, "https": "auto", "gateway": False},
    {"replicas": "0..4", "scaling": {"metric": "rps", "target": 10, "window": "30s"}},
    {"replicas": [{"count": "1..2", "scaling": {"metric": "concurrency", "target": 0.5}}]},
    {"probes": [{"type": "http", "url": "/", "headers": [{"name": "A", "value": "b"}]}]},
    {"rate_limits": [{"rps": 4, "key": {"type": "header", "header": "X-Key"}}]},
    {"rate_limits": [{"rps": 4}, {"rps": 1, "prefix": "/slow/"}]},
    {"model": {"name": "llama", "format": "openai", "type": "chat"}, "headers": {"A": "b"}},
    {"replicas": {"min": 1, "max": 2}, "scaling": {"metric": "rps", "target": 1}},
    {"replica_groups": [{"count": 1}], "gateway": {"name": "a"}, "dialect": "dstack"},
    {"rate_limits": [{"rps": 4, "key": {"type": "ip_address"}}]},
    {"eject_for": "off"},
    {"eject_for": "1m"},
    {"model": "llama", "unhealthy_after": "off", "rollout_timeout": "5m", "surge": 2},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"comands": ["a"]}, "$"),
    ({"resources": {"memory": 8}}, "$.resources.memory"),
    ({"resources": {"memory": "8 apples"}}, "$.resources.memory"),
    ({"resources": {"memroy": "8GB"}}, "$.resources"),
    ({"priority": 101}, "$.priority"),
    ({"band": "highest"}, "$.band"),
    ({"stop_duration": "soon"}, "$.stop_duration"),
    ({"working_dir": 5}, "$.working_dir"),
    ({"outputs": "logs"}, "$.outputs"),
    ({"name": "My_Run"}, "$.name"),
    ({"type": "gateway"}, "$.type"),
    ({"type": "dev-environment", "ide": "emacs"}, "$.ide"),
    ({"type": "dev-environment", "commands": ["a"]}, "$"),
    ({"type": "dev-environment", "init": True}, "$.init"),
    ({"ide": "vscode"}, "$"),
    ({"port": 80}, "$"),
    ({"type": "service"}, "$"),
    ({"type": "service", "port": 80, "scaling": {"metric": "cpu", "target": 1}}, "$.scaling"),
    ({"type": "service", "port": 80, "gang": True}, "$"),
    ({"groups": [{"name": "a", "comands": []}]}, "$.groups"),
]


def blocks() -> list[str]:
    pages = "".join(page.read_text() for page in PAGES)
    texts = re.findall(r"```yaml\n(.*?)```", pages, re.DOTALL)
    return [text for text in texts if re.search(r"^type: (?!fleet|gateway)", text, re.MULTILINE)]


@pytest.mark.parametrize("block", [*blocks(), WIDE])
def test_it_accepts_every_whole_example_of_the_pages(block: str) -> None:
    assert faults(read(block.encode(), name="example").data) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_it_accepts_the_files_that_we_ship(path: Path) -> None:
    assert faults(load(path).data) == []


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
def test_it_accepts_every_form_that_the_controller_accepts(fields: dict[str, Any]) -> None:
    data = {**TASK, **fields}
    assert parse(with_environment(data, {}, {})).type == "task"
    assert faults(data) == []


@pytest.mark.parametrize("fields", ACCEPTED_OF_SERVICES, ids=str)
def test_it_accepts_every_form_of_a_service(fields: dict[str, Any]) -> None:
    assert parse({**SERVICE, **fields}).type == "service"
    assert faults({**SERVICE, **fields}) == []


@pytest.mark.parametrize("fields", ACCEPTED_OF_DEV_ENVIRONMENTS, ids=str)
def test_it_accepts_every_form_of_a_dev_environment(fields: dict[str, Any]) -> None:
    assert parse({**DEV_ENVIRONMENT, **fields}).type == "dev-environment"
    assert faults({**DEV_ENVIRONMENT, **fields}) == []


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_accepts_every_file_of_dstack_that_the_controller_accepts(shape: dict[str, Any]) -> None:
    has_forgotten_indentation = "resources" in shape and shape["resources"] is None
    if refusal(shape) is None and not has_forgotten_indentation:  # which an editor may show
        assert faults(as_sent(shape)) == []


@pytest.mark.parametrize(("fields", "field"), REFUSED, ids=str)
def test_it_names_the_field_that_is_wrong(fields: dict[str, Any], field: str) -> None:
    found = [error.json_path for error in VALIDATOR.iter_errors({**TASK, **fields})]
    assert [path for path in found if path.startswith(field)]


def test_every_field_is_described_for_the_one_who_writes() -> None:
    made = document()
    parts = [made, *(part for part in made["$defs"].values() if "properties" in part)]
    assert [
        name
        for part in parts
        for name, field in part["properties"].items()
        if not field.get("description")
    ] == []


def test_nothing_in_it_is_filled_in_by_the_command_alone() -> None:
    assert "uploaded" not in json.dumps(document()).lower()
