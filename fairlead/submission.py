"""From a YAML file to a run: read, complete from the environment, upload the code, submit.

A submission carries a key of its own, so it is safe to repeat when its answer is lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from controller.configuration.convert import ConfigurationError
from controller.configuration.dstack import marked
from controller.configuration.parse import parse
from controller.configuration.source import Document, SourceError, load, with_environment
from fairlead.errors import ConnectionLost, InvalidConfiguration, UsageError
from fairlead.follow import Outages, Patience, Tell, follow_run
from fairlead.rest import ControllerClient, decode

SUBMIT_TRIES = 5
_KEPT, _ENDING = 200, 202


def read_document(file: Path) -> Document:
    """Return the file's data with its lines; the name of a file of dstack's is noted in the data.
    Raises InvalidConfiguration."""
    try:
        document = load(file)
    except SourceError as error:
        raise InvalidConfiguration(str(error)) from None
    return replace(document, data=marked(document.data, file.name))


def completed(
    document: Document, environ: Mapping[str, str], overrides: Mapping[str, str]
) -> object:
    """Return the complete configuration, checked by `parse`; `overrides` are variables of its
    `env`.

    Raises InvalidConfiguration with file, line, field and what is allowed.
    """
    try:
        filled = with_environment(document.data, environ, overrides)
        parse(filled)
    except ConfigurationError as error:
        raise InvalidConfiguration(document.explain(error)) from None
    return filled


def given_variables(env: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `--env`. Raises UsageError; messages name variables, never values."""
    given: dict[str, str] = {}
    for entry in env:
        name, equals, value = entry.partition("=")
        if not name:
            raise UsageError("--env: give NAME=VALUE or NAME")
        if not equals:
            if name not in environ:
                raise UsageError(f"--env {name}: it is not set here; set it, or give {name}=VALUE")
            value = environ[name]
        given[name] = value
    return given


def with_code(
    rest: ControllerClient,
    configuration: object,
    base: Path,
    name: str,
    environ: Mapping[str, str],
    tell: Tell,
    document: Document | None = None,
) -> object:
    """Return the configuration with its `repos` and `files` uploaded.

    Paths in it are relative to `base`; `name` is the configuration's in errors, which name a line
    of `document`. Raises InvalidConfiguration, ApiError, ConnectionLost.
    """
    if not isinstance(configuration, dict) or not {"repos", "files"} & configuration.keys():
        return configuration
    from fairlead.upload import send_code  # few runs bring code

    try:
        return send_code(rest, configuration, base, environ, tell)
    except ConfigurationError as error:
        raise _invalid(error, name, document) from None


def _invalid(
    error: ConfigurationError, name: str, document: Document | None
) -> InvalidConfiguration:
    return InvalidConfiguration(document.explain(error) if document else f"{name}: {error}")


def with_code_unsent(
    configuration: object,
    base: Path,
    name: str,
    environ: Mapping[str, str],
    document: Document | None = None,
) -> object:
    """Return the configuration as `with_code` would, for a plan: nothing is sent. Raises
    InvalidConfiguration."""
    if not isinstance(configuration, dict) or not {"repos", "files"} & configuration.keys():
        return configuration
    from fairlead.upload import as_if_sent  # few runs bring code

    try:
        return as_if_sent(configuration, base, environ)
    except ConfigurationError as error:
        raise _invalid(error, name, document) from None


def submit(rest: ControllerClient, body: Mapping[str, object], tell: Tell) -> tuple[bytes, bool]:
    """Submit. Return the run's JSON, and whether it is a live run that was kept instead.

    A run that must be replaced is awaited first. Raises ApiError, ConnectionLost.
    """
    keyed = {**body, "client_key": uuid.uuid4().hex}
    while True:
        data, status = _submit_once(rest, keyed, tell)
        if status != _ENDING:
            return data, status == _KEPT
        _await_end(rest, data, tell)


def _submit_once(
    rest: ControllerClient, keyed: Mapping[str, object], tell: Tell
) -> tuple[bytes, int]:
    patience = Patience(Outages(tell))
    for _ in range(SUBMIT_TRIES - 1):
        try:
            return rest.submit(keyed)
        except ConnectionLost as error:
            if error.refused:
                raise
            patience.lost(error)
    return rest.submit(keyed)


def _await_end(rest: ControllerClient, data: bytes, tell: Tell) -> None:
    from controller.api.documents import RunView

    before = decode(data, RunView)
    tell(f"{before.name} ({before.id}) is being stopped; waiting for its end")
    for _ in follow_run(rest, before.id, Outages(tell)):
        pass
