"""`ssh` in a task's file, and what a node is asked for in the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.commands.serve_options import read_keys
from controller.lifecycle.model import JobSpec
from fairlead.cli.errors import CliError
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.plan import Defaults, to_run
from tests.unit.api.conftest import HOST_KEY

KEYS = ("ssh-ed25519 AAAA",)


def planned(**fields: object) -> JobSpec:
    written = {"type": "task", "commands": ["true"], **fields}
    (job,) = to_run(parse(written), written, Defaults(), KEYS).specs
    return job


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, "auto"),
        ({"ssh": "embedded"}, "embedded"),
        ({"ssh": "install"}, "install"),
        ({"ssh": "off"}, "off"),
        ({"ssh": False}, "off"),
    ],
)
def test_each_way_is_what_it_says_and_off_needs_no_quotes(
    fields: dict[str, object], mode: str
) -> None:
    job = planned(**fields)
    assert (job.ssh, job.ssh_keys) == (mode, KEYS)


@pytest.mark.parametrize("value", [True, "on", 22, ["auto"]])
def test_anything_else_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigurationError) as refused:
        planned(ssh=value)
    assert refused.value.field == "ssh"


def test_the_projects_keys_get_in_beside_the_users() -> None:
    written: dict[str, object] = {"type": "task", "commands": ["true"]}
    defaults = Defaults(ssh_keys=("ssh-rsa BBBB", *KEYS))
    (job,) = to_run(parse(written), written, defaults, KEYS).specs
    assert job.ssh_keys == ("ssh-ed25519 AAAA", "ssh-rsa BBBB")


def test_a_file_of_project_keys_is_read_without_its_comments(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# of the team\n\n{HOST_KEY} admin@desk\n")
    assert read_keys(file) == (HOST_KEY,)


@pytest.mark.parametrize("content", ["nonsense\n", None])
def test_a_file_that_holds_something_else_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(CliError, match="--project-keys"):
        read_keys(file)
