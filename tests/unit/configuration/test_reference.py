"""Schema, error texts and the reference page know the same fields."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from controller.configuration import schema
from controller.configuration.parse import parse
from controller.configuration.plan import Defaults, to_run
from controller.configuration.source import load, read, with_environment
from fairlead.task import TaskFields

PROJECT = Path(__file__).parents[3]
PAGE = PROJECT / "docs" / "configuration.md"
EXAMPLES = PROJECT / "examples"


def fields_of(struct: type[msgspec.Struct], prefix: str = "") -> set[str]:
    return {prefix + field.name for field in msgspec.structs.fields(struct)}


FIELDS = (
    fields_of(schema.TaskConfiguration)
    | fields_of(schema.ResourcesFields, "resources.")
    | fields_of(schema.GpuFields, "resources.gpu.")
    | fields_of(schema.RetryFields, "retry.")
    | fields_of(schema.VolumeFields, "volumes.")
    | fields_of(schema.RegistryAuthFields, "registry_auth.")
    | fields_of(schema.RepoFields, "repos.")
    | fields_of(schema.FileFields, "files.")
    | fields_of(schema.BucketFields, "buckets.")
    | fields_of(schema.GangFields, "gang.")
    | fields_of(schema.ConstraintFields, "constraints.")
    | fields_of(schema.DisconnectFields, "on_disconnect.")
    | {"groups.name"}
)


_OF_REPLICAS = fields_of(schema.ReplicaGroupFields) - fields_of(schema.GroupedFields)
OF_SERVICES = (
    (fields_of(schema.ServiceConfiguration) - fields_of(schema.RunFields) - {"init"})
    | {f"replicas.{name}" for name in _OF_REPLICAS}
    | fields_of(schema.ScalingFields, "scaling.")
    | fields_of(schema.ProbeFields, "probes.")
    | fields_of(schema.RateLimitFields, "rate_limits.")
    | fields_of(schema.RateLimitKeyFields, "rate_limits.key.")
    | fields_of(schema.ModelFields, "model.")
)
OF_DEV_ENVIRONMENTS = {"ide", "version", "inactivity_duration", "home"}


def test_every_field_says_what_it_may_hold() -> None:
    assert set(schema.ALLOWED) == FIELDS
    assert {path for path in schema.SERVICE_ALLOWED if path not in FIELDS} == OF_SERVICES - {"type"}
    of_dev_environments = {path for path in schema.DEV_ENVIRONMENT_ALLOWED if "." not in path}
    assert of_dev_environments | schema.NOT_OF_DEV_ENVIRONMENTS - {"schedule"} >= fields_of(
        schema.DevEnvironmentConfiguration
    )
    assert of_dev_environments >= OF_DEV_ENVIRONMENTS


def test_a_task_in_python_has_the_fields_of_the_yaml() -> None:
    assert {*TaskFields.__annotations__, "type"} == fields_of(schema.TaskConfiguration)


def test_every_field_is_explained_in_the_reference_and_no_other() -> None:
    explained = re.findall(r"^\| `([a-z_.]+)` \|", PAGE.read_text(), re.MULTILINE)

    assert sorted(explained) == sorted(FIELDS | OF_SERVICES | OF_DEV_ENVIRONMENTS)


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
