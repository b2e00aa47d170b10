"""Definitions, error texts and the reference page know the same fields."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.lifecycle.model import JobSpec
from fairlead.configuration.field import own_fields
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.definition import RunDefinition
from fairlead.configuration.runs.plan import Defaults, to_run
from fairlead.configuration.runs.task import TaskConfiguration
from fairlead.configuration.runs.types import DEFINITIONS
from fairlead.configuration.text.environment import with_environment
from fairlead.configuration.text.source import load, read
from fairlead.task import TaskFields
from tests import python_fields
from tests.compare import WIDE

PROJECT = Path(__file__).parents[3]
PAGE = PROJECT / "docs" / "configuration.md"
EXAMPLES = PROJECT / "examples"


FIELDS = {path for definition in DEFINITIONS.values() for path in definition.guide().allowed}


def names_of(struct: type[msgspec.Struct]) -> set[str]:
    return set(struct.__struct_fields__)


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_every_field_says_what_it_may_hold(definition: RunDefinition[Any]) -> None:
    allowed = definition.guide().allowed
    named = {path for path in allowed if "." not in path}

    assert all(allowed.values())
    assert named == names_of(definition.fields) - definition.withheld
    assert definition.withheld <= names_of(definition.fields)


def test_a_field_that_does_not_say_what_it_may_hold_is_a_fault_of_ours() -> None:
    class Fields(msgspec.Struct):
        silent: str

    with pytest.raises(TypeError, match=r"Fields\.silent does not say what it may hold"):
        own_fields(Fields)


def test_a_task_in_python_has_the_fields_of_the_yaml() -> None:
    assert {*TaskFields.__annotations__, "type"} == names_of(TaskConfiguration)
    text = python_fields.FILE.read_text()
    assert python_fields.written(text) == text, "run ./dev pages"


def test_every_field_is_explained_in_the_reference_and_no_other() -> None:
    explained = re.findall(r"^\| `([a-z_.]+)` \|", PAGE.read_text(), re.MULTILINE)

    assert sorted(explained) == sorted(FIELDS)


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL))
def test_every_example_of_the_reference_is_right(block: str) -> None:
    data = read(block.encode(), name="example").data
    assert isinstance(data, dict)

    environ = {"HF_TOKEN": "hf-token", "GITLAB_TOKEN": "gitlab-token"}
    assert parse(with_environment(data, environ, {})).type == data["type"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_can_be_submitted(path: Path) -> None:
    data = load(path).data
    assert isinstance(data, dict)
    plan = to_run(parse(data), data, Defaults())
    assert plan.name == path.stem
    assert msgspec.json.decode(msgspec.json.encode(plan.specs), type=tuple[JobSpec, ...]) == (
        plan.specs
    )


def test_each_field_of_a_job_is_planned_as_its_spec_has_it() -> None:
    data = read(WIDE.encode(), name="wide").data
    assert isinstance(data, dict)
    more: dict[str, object] = {
        "log_quota": "2MiB",
        "python": "3.12",
        "shell": "/bin/sh",
        "setup": ["true"],
    }
    more |= {"fleets": "big", "outputs": ["a/*"], "cap_add": ["SYS_PTRACE"], "pids_limit": 64}
    more |= {"ssh": "install", "stop_signal": "SIGINT", "restart_exit_code": 3, "core_dumps": True}
    specs = to_run(parse({**data, **more}), {}, Defaults()).specs

    assert msgspec.json.decode(msgspec.json.encode(specs), type=tuple[JobSpec, ...]) == specs
    assert type(specs[0].log_quota) is int
