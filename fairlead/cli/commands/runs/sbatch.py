"""`sbatch`: submit a batch script of Slurm as a task."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Overrides
from fairlead.cli.commands.runs.applying import submitted
from fairlead.configuration.text import sbatch as sbatch_text
from fairlead.configuration.text.sbatch import SbatchError, convert
from fairlead.configuration.text.source import Document
from fairlead.configuration.text.written import as_yaml
from fairlead.errors import InvalidConfiguration, UsageError
from fairlead.files.ssh_keys import public_keys
from fairlead.submission import (
    completed,
    given_variables,
    new_client_key,
    with_code,
    with_code_there,
    with_overrides,
)


def sbatch(
    script: Path,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    code: Path | None = None,
    ignore: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    env: Annotated[tuple[str, ...], Parameter(name=["-e", "--env"], negative=())] = (),
    override: Overrides = (),
    array: Annotated[str | None, Parameter(name=["-a", "--array"])] = None,
    dependency: Annotated[str | None, Parameter(name=["-d", "--dependency"])] = None,
    job_name: Annotated[str | None, Parameter(name=["-J", "--job-name"])] = None,
    time: Annotated[str | None, Parameter(name=["-t", "--time"])] = None,
    wait: Annotated[bool, Parameter(name=["-W", "--wait"], negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Submit a batch script of Slurm; its `#SBATCH` lines become the fields of a task.

    Parameters
    ----------
    script
        The script. A line that has no counterpart here is refused with its number.
    arguments
        The script's arguments; options of this command come before the script.
    code
        A folder that the job gets as its working directory, such as the script's folder.
    ignore
        An option that may be left out, such as mail-type; may be repeated.
    env
        NAME=VALUE, or NAME for the value in your environment.
    array
        The tasks of an array, such as 0-9%4, instead of the script's tasks.
    dependency
        The runs to wait for, such as afterok:prepare, instead of the script's dependencies.
    job_name
        The run's name, instead of the script's.
    time
        The time limit, such as 2:00:00, instead of the script's.
    wait
        Follow the run; the exit status is the job's.
    dry_run
        Print the YAML, and submit nothing.
    """
    options = {"array": array, "dependency": dependency, "job-name": job_name, "time": time}
    given = {name: value for name, value in options.items() if value is not None}
    document, notes = _read(script, arguments, ignore, given, code)
    document = with_overrides(document, override)
    for note in notes:
        output.note(note)
    if dry_run:
        assert isinstance(document.data, dict)
        output.emit(as_yaml(document.data).rstrip("\n"))
        return 0
    configuration = completed(document, os.environ, given_variables(env, os.environ))
    client = settings.client()
    wish = {
        "name": None,
        "ssh_keys": public_keys(os.environ, Path.home()),
        "if_exists": "error",
        "parent": None,
        "client_key": new_client_key(),
    }

    def send() -> dict[str, object]:
        sent = with_code(
            client, configuration, Path.cwd(), str(script), os.environ, output.note, document
        )
        return {**wish, "configuration": sent}

    follow = with_code_there(send, lambda body: submitted(client, body, False), output.note)
    return follow(not wait, False)


def _read(
    script: Path,
    arguments: Sequence[str],
    ignore: Sequence[str],
    given: Mapping[str, str],
    code: Path | None,
) -> tuple[Document, tuple[str, ...]]:
    try:
        text = script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise UsageError(f"{script}: {why}") from None
    try:
        converted = convert(
            text, str(script), arguments, [one.lstrip("-") for one in ignore], given
        )
    except SbatchError as error:
        raise InvalidConfiguration(str(error)) from None
    if code is not None:
        converted = sbatch_text.with_code(converted, str(code.resolve()))
    document = Document(name=str(script), data=converted.configuration, lines=dict(converted.lines))
    return document, converted.notes
