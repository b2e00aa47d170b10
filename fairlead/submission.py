"""From a YAML file to a run: read, complete from the environment, upload the code, submit.

A submission carries a key of its own, so it is safe to repeat when its answer is lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, TypeVar

import msgspec
from msgspec.structs import replace

from fairlead.configuration.errors import ConfigurationError
from fairlead.configuration.text.dstack import marked
from fairlead.configuration.text.environment import with_environment
from fairlead.configuration.text.source import Document, SourceError, load
from fairlead.errors import (
    ApiError,
    ConnectionLost,
    FairleadError,
    InvalidConfiguration,
    UsageError,
)
from fairlead.patience import Outages, Patience, Tell
from fairlead.rest import ControllerClient, decode

if TYPE_CHECKING:
    from fairlead.documents.runs import BatchItem
    from fairlead.files.ignored import IsIgnored
T = TypeVar("T")
Answered = TypeVar("Answered")
SUBMIT_TRIES = 5
SENT_AGAIN = "the controller has lost the code that was sent; sending it again"
_REQUEST_BYTES = 1 << 20
"""A controller takes twice as much; a larger run goes alone."""
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
    configuration = filled(document, environ, overrides)
    require_valid(document, configuration)
    return configuration


def filled(document: Document, environ: Mapping[str, str], overrides: Mapping[str, str]) -> object:
    """Return the complete configuration, which nothing has checked. Raises InvalidConfiguration for
    a variable that is not set."""
    try:
        return with_environment(document.data, environ, overrides)
    except ConfigurationError as error:
        raise InvalidConfiguration(document.explain(error)) from None


def require_valid(document: Document, configuration: object) -> None:
    """Raise InvalidConfiguration, with file, line, field and what is allowed, for the first
    error."""
    from fairlead.configuration.parse import parse  # 20 ms, which a plain task saves

    try:
        parse(configuration)
    except ConfigurationError as error:
        raise InvalidConfiguration(document.explain(error)) from None


@contextmanager
def checked_if_it_fails(document: Document, configuration: object) -> Iterator[None]:
    """Explain the failure of a submission by what is wrong with the file, if something is.

    The controller checks each configuration; only its refusal is worth the check here, which knows
    the line. What only the controller can know, such as the runs that there are, gets its line too.
    """
    try:
        yield
    except UnicodeEncodeError:
        # Half of a character, as "\\ud800" in the file: it cannot be sent.
        require_valid(document, configuration)
        raise
    except FairleadError as error:
        require_valid(document, configuration)
        if isinstance(error, ApiError) and error.status in (400, 404):
            raise in_its_file(error, document, error.field or "") from None
        raise


def in_its_file(error: ApiError, document: Document, field: str) -> FairleadError:
    """Return the refusal with the file and the line of this field; as it is if the file has no such
    field."""
    if not field or field.partition(".")[0].partition("[")[0] not in document.lines:
        return error
    message = str(error).removeprefix(f"{error.field}: ")
    return InvalidConfiguration(document.explain(ConfigurationError(field, message)))


def with_overrides(document: Document, assignments: Sequence[str]) -> Document:
    """Return the document with the fields of these `FIELD=VALUE`. Raises InvalidConfiguration."""
    if not assignments:
        return document
    from fairlead.configuration.text.overrides import overridden

    try:
        return replace(document, data=overridden(document.data, assignments))
    except ConfigurationError as error:
        raise InvalidConfiguration(str(error)) from None


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
    also_ignored: IsIgnored | None = None,
) -> object:
    """Return the configuration with its `repos` and `files` uploaded, and its sweep's file read.

    Paths in it are relative to `base`; `name` is the configuration's in errors, which name a line
    of `document`. `also_ignored` stays behind beside what `.fairleadignore` names. Raises
    InvalidConfiguration, ApiError, ConnectionLost.
    """
    configuration = _with_sets(configuration, base, name, document)
    if not _brings_code(configuration):
        return configuration
    from fairlead.files.upload import send_code  # few runs bring code

    with _explained(name, document):
        return send_code(rest, configuration, base, environ, tell, also_ignored)


def _brings_code(configuration: object) -> TypeGuard[dict[str, object]]:
    return isinstance(configuration, dict) and bool({"repos", "files"} & configuration.keys())


def _with_sets(configuration: object, base: Path, name: str, document: Document | None) -> object:
    """Return the configuration with the parameter sets of its sweep's file."""
    sweep = configuration.get("sweep") if isinstance(configuration, dict) else None
    if not isinstance(configuration, dict) or not isinstance(sweep, dict) or "file" not in sweep:
        return configuration
    from fairlead.configuration.parse import parse
    from fairlead.files.set_files import with_sets  # few sweeps have a file

    with _explained(name, document):
        filled = {**configuration, "sweep": with_sets(sweep, base)}
        parse(filled)
        return filled


@contextmanager
def _explained(name: str, document: Document | None) -> Iterator[None]:
    """Name the line of the document in what is wrong with it."""
    try:
        yield
    except ConfigurationError as error:
        explained = document.explain(error) if document else f"{name}: {error}"
        raise InvalidConfiguration(explained) from None


def with_code_digested(
    configuration: object,
    base: Path,
    name: str,
    environ: Mapping[str, str],
    document: Document | None = None,
    also_ignored: IsIgnored | None = None,
) -> object:
    """Return the configuration as `with_code` would; nothing is sent. Raises
    InvalidConfiguration."""
    configuration = _with_sets(configuration, base, name, document)
    if not _brings_code(configuration):
        return configuration
    from fairlead.files.upload import digested  # few runs bring code

    with _explained(name, document):
        return digested(configuration, base, environ, also_ignored)


def with_code_unsent(
    configuration: object,
    base: Path,
    name: str,
    environ: Mapping[str, str],
    document: Document | None = None,
) -> object:
    """Return the configuration as `with_code` would, for a plan: nothing is sent. Raises
    InvalidConfiguration."""
    configuration = _with_sets(configuration, base, name, document)
    if not _brings_code(configuration):
        return configuration
    from fairlead.files.upload import as_if_sent  # few runs bring code

    with _explained(name, document):
        return as_if_sent(configuration, base, environ)


def with_code_there(
    send: Callable[[], T], submit_it: Callable[[T], Answered], tell: Tell
) -> Answered:
    """Let `send` upload the code, and `submit_it` submit what it returns. Return the answer.

    Without a bucket, uploads are on the leader's disk, and the next leader refuses the submission:
    then both are done once more. Raises what they raise.
    """
    try:
        return submit_it(send())
    except ApiError as error:
        from fairlead.wire.errors import NOT_UPLOADED  # loaded for a refusal anyway

        if error.code != NOT_UPLOADED:
            raise
    tell(SENT_AGAIN)
    return submit_it(send())


def new_client_key() -> str:
    """Return the key of a submission, by which the controller does it once."""
    return uuid.uuid4().hex


def submit(
    rest: ControllerClient,
    body: Mapping[str, object],
    tell: Tell,
    lost: ConnectionLost | None = None,
) -> tuple[bytes, bool]:
    """Submit. Return the run's JSON, and whether it is a live run that was kept instead.

    A run that must be replaced is awaited first. `lost`: what a first try with the body's client
    key ended with. Raises ApiError, ConnectionLost.
    """
    keyed = {"client_key": new_client_key(), **body}
    while True:
        data, status = _repeated(partial(rest.submit, keyed), tell, lost)
        lost = None
        if status != _ENDING:
            return data, status == _KEPT
        _await_end(rest, data, tell)


def submit_all(
    rest: ControllerClient, bodies: Iterable[Mapping[str, object]], tell: Tell
) -> list[BatchItem]:
    """Submit the runs in requests of many; return the answer to each, in their order.

    Each has a client key, so that a request whose answer is lost is repeated. Raises ApiError when
    a request as a whole is refused, ConnectionLost.
    """
    from fairlead.documents.runs import BatchAnswer

    answers: list[BatchItem] = []
    for runs in _in_requests(bodies):
        data = _repeated(
            partial(rest.post, "/v1/runs:batch", {"runs": runs}, repeatable=True), tell
        )
        answers += decode(data, BatchAnswer).results
    return answers


def _in_requests(bodies: Iterable[Mapping[str, object]]) -> Iterator[list[msgspec.Raw]]:
    """Yield the runs of each request, encoded."""
    from fairlead.documents.runs import MAX_BATCH

    runs: list[msgspec.Raw] = []
    size = 0
    for body in bodies:
        run = msgspec.json.encode({"client_key": new_client_key(), **body})
        if runs and (len(runs) == MAX_BATCH or size + len(run) > _REQUEST_BYTES):
            yield runs
            runs, size = [], 0
        runs.append(msgspec.Raw(run))
        size += len(run)
    if runs:
        yield runs


def _repeated(ask: Callable[[], T], tell: Tell, lost: ConnectionLost | None = None) -> T:
    """Return the answer to a request that may be repeated. `lost`: what a first try ended with.
    Raises ApiError, ConnectionLost."""
    patience = Patience(Outages(tell))

    def wait(error: ConnectionLost) -> None:
        # No controller got it: the URL may be wrong, which no wait would show.
        if error.refused:
            raise error
        patience.lost(error)

    if lost is not None:
        wait(lost)
    for _ in range(SUBMIT_TRIES - 1):
        try:
            return ask()
        except ConnectionLost as error:
            wait(error)
    return ask()


def submit_together(
    rest: ControllerClient, bodies: Sequence[Mapping[str, object]], tell: Tell
) -> bytes:
    """Submit several runs as one act. Return the JSON of all of them. Raises ApiError,
    ConnectionLost."""
    keyed = {"runs": [{"client_key": new_client_key(), **body} for body in bodies]}
    return _repeated(partial(rest.submit_together, keyed), tell)


def _await_end(rest: ControllerClient, data: bytes, tell: Tell) -> None:
    from fairlead.documents.runs import RunView
    from fairlead.follow import follow_run

    before = decode(data, RunView)
    tell(f"{before.name} ({before.id}) is being stopped; waiting for its end")
    for _ in follow_run(rest, before.id, Outages(tell)):
        pass
