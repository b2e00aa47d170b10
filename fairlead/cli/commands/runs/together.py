"""`apply -f A -f B`: submit several runs as one act, and follow one after the other."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.runs.applying import is_fleet, is_gateway, tell_translation
from fairlead.cli.commands.runs.attaching import follow_here
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.text.source import Document
from fairlead.documents.runs import RunView
from fairlead.errors import ApiError, InvalidConfiguration
from fairlead.files.ssh_keys import public_keys
from fairlead.rest import ControllerClient, decode
from fairlead.submission import (
    completed,
    given_variables,
    new_client_key,
    read_document,
    submit_together,
    with_code,
    with_code_there,
    with_overrides,
)

_PATH_IN_RUNS = re.compile(r"runs\[(\d+)\]\.?(?:configuration\.?)?(.*)")


class _Submitted(msgspec.Struct, frozen=True):
    runs: tuple[RunView, ...]


def apply_together(
    files: Sequence[Path],
    env: tuple[str, ...],
    override: tuple[str, ...],
    *,
    parent: str | None,
    detach: bool,
    json: bool,
) -> int:
    """Submit the runs of all files, or none, and follow each; the exit status is the first that is
    not 0."""
    documents = [with_overrides(read_document(file), override) for file in files]
    for file, document in zip(files, documents, strict=True):
        if is_fleet(document) or is_gateway(document):
            raise CliError(f"{file}: only runs are applied together", EXIT_USAGE)
    variables = given_variables(env, os.environ)
    configurations = [completed(document, os.environ, variables) for document in documents]
    client = settings.client()
    keys = public_keys(os.environ, Path.home())
    wishes = [{"ssh_keys": keys, "parent": parent, "client_key": new_client_key()} for _ in files]
    for configuration in configurations:
        tell_translation(configuration)

    def send() -> list[dict[str, object]]:
        return [
            {
                **wish,
                "configuration": with_code(
                    client,
                    configuration,
                    file.resolve().parent,
                    str(file),
                    os.environ,
                    output.note,
                    document,
                ),
            }
            for wish, file, document, configuration in zip(
                wishes, files, documents, configurations, strict=True
            )
        ]

    try:
        data = with_code_there(
            send, lambda bodies: submit_together(client, bodies, output.note), output.note
        )
    except ApiError as error:
        raise _in_its_file(error, documents) from None
    return _go_on(client, data, detach=detach, json=json)


def _in_its_file(error: ApiError, documents: Sequence[Document]) -> Exception:
    """Return the refusal with the file and the line of its field."""
    match = _PATH_IN_RUNS.fullmatch(error.field or "")
    if match is None:
        return error
    document = documents[int(match[1])]
    message = str(error).removeprefix(f"{error.field}: ")
    return InvalidConfiguration(document.explain(ConfigurationError(match[2], message)))


def _go_on(client: ControllerClient, data: bytes, *, detach: bool, json: bool) -> int:
    runs = decode(data, _Submitted).runs
    if detach:
        if json:
            output.emit_json(data)
        else:
            output.emit("\n".join(run.name for run in runs))
        return 0
    output.note(f"submitted {', '.join(run.name for run in runs)}")
    statuses = [follow_here(client, run, json) for run in runs]
    return next((status for status in statuses if status), 0)
