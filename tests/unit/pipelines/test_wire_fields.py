"""A job's spec and the agents' wire types share fields by name, so a name means one thing."""

from __future__ import annotations

from typing import get_type_hints

import msgspec
import pytest

from controller.lifecycle.model import JobSpec, Resources
from fairlead.configuration.runs.common import CONTAINER_OPTIONS
from fairlead.wire.job import JobProgram
from fairlead.wire.job import JobSpec as RunnerJob
from fairlead.wire.shim import ContainerOptions, TaskRequest, TaskResources

OF_THE_CONTEXT = {
    *("run_id", "run_name", "job_id", "attempt_id", "group", "cookie", "index"),
    *("job_count", "group_job_count", "gang", "monitoring_descriptor"),
    *("max_duration", "stop_duration", "parameters", "parameter_set", "gpus", "reuse_container"),
    *("restarts", "keeps_for"),
}
"""What the runner is told of a job's place in its run, and of the run's policy."""


@pytest.mark.parametrize(
    ("ours", "of_the_agent", "made_for_it"),
    [
        (JobSpec, RunnerJob, {"repos"}),
        (Resources, TaskResources, {"gpu"}),
        (JobSpec, TaskRequest, {"resources", "ssh"}),
    ],
)
def test_a_field_of_one_name_has_one_type(
    ours: type[msgspec.Struct], of_the_agent: type[msgspec.Struct], made_for_it: set[str]
) -> None:
    here, there = get_type_hints(ours), get_type_hints(of_the_agent)
    shared = (here.keys() & there.keys()) - made_for_it

    assert shared
    assert {
        name: (here[name], there[name])
        for name in shared
        if there[name] not in (here[name], here[name] | None)
    } == {}


def test_a_field_that_goes_to_the_runner_as_it_is_is_written_once() -> None:
    """Repositories go without their credentials."""
    program = set(JobProgram.__struct_fields__)
    ours, theirs = (set(one.__struct_fields__) - program for one in (JobSpec, RunnerJob))
    assert ours & theirs == {"repos"}
    assert theirs == OF_THE_CONTEXT | {"repos"}


def test_every_option_of_a_container_is_a_field_of_the_yaml() -> None:
    made = {"init", "user"}
    assert set(ContainerOptions.__struct_fields__) == set(CONTAINER_OPTIONS) | made
