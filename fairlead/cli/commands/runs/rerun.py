"""`rerun`: submit a run again, with other values of its fields."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Json, Overrides
from fairlead.cli.commands.runs.applying import submit_and_follow
from fairlead.configuration.secrecy import hidden_fields
from fairlead.configuration.text.source import Document
from fairlead.errors import UsageError
from fairlead.files.ssh_keys import public_keys
from fairlead.rest import decode, run_path
from fairlead.submission import given_variables, with_overrides


class _Submission(msgspec.Struct, frozen=True):
    name: str
    configuration: dict[str, Any]


def rerun(
    run: str,
    /,
    *,
    override: Overrides = (),
    name: Annotated[str | None, Parameter(name=["-n", "--name"])] = None,
    env: Annotated[tuple[str, ...], Parameter(name=["-e", "--env"], negative=())] = (),
    detach: Annotated[bool, Parameter(name=["-d", "--detach"], negative=())] = False,
    json: Json = False,
) -> int:
    """Submit a run again, with the code that it had; the exit status is the job's exit code.

    Parameters
    ----------
    run
        Id or name; it may have ended.
    name
        The new run's name, instead of the old one's.
    env
        NAME=VALUE, or NAME for the value in your environment. Values that may be secret are not
        kept with a run, so they must be given again.
    detach
        Return once the run is submitted.
    """
    client = settings.client()
    before = decode(client.get(run_path(run, "submission")), _Submission)
    given = given_variables(env, os.environ)
    assignments = [*(f"env.{key}={value}" for key, value in given.items()), *override]
    data = {"name": before.name, **before.configuration}
    document = with_overrides(Document(name=before.name, data=data, lines={}), assignments)
    assert isinstance(document.data, dict)
    sweep = document.data.get("sweep")
    if isinstance(sweep, Mapping) and {"sets", "file"} <= sweep.keys():
        raise UsageError("sweep.file: `rerun` reads no file: submit with `fairlead apply -f FILE`")
    if hidden := list(hidden_fields(document.data)):
        raise UsageError(
            f"{', '.join(hidden)}: the value may be secret, so it was not kept: give it again "
            f"(--env NAME=VALUE, or --override {hidden[0]}=VALUE)"
        )
    wish = {
        "configuration": document.data,
        "name": name,
        "ssh_keys": public_keys(os.environ, Path.home()),
        "if_exists": "error",
        "parent": None,
    }
    output.note(f"again as {before.name}" if name is None else f"{before.name} again as {name}")
    return submit_and_follow(client, wish, False, detach=detach, json=json)
