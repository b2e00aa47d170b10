"""What requests may carry: bodies and query parameters.

Unknown fields of a body are ignored, so that a newer client can talk to an older controller.
Unknown query parameters are refused by name: without its filter an answer would be a wrong one.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec

from controller.api.documents import EventView, NodeView, RunSummary
from controller.service.errors import Invalid

T = TypeVar("T")

PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Offset = Annotated[int, msgspec.Meta(ge=0)]


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    pass


class _Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class SubmitBody(_Body, frozen=True):
    """`configuration`: the YAML's content. The same `client_key` again gives the same run."""

    configuration: dict[str, Any]
    name: str | None = None
    client_key: str | None = None
    ssh_keys: tuple[str, ...] = ()
    """OpenSSH public key lines: who may come into the run's containers by SSH."""


class StopBody(_Body, frozen=True):
    abort: bool = False


class DrainBody(_Body, frozen=True):
    reason: str | None = None


class NoQuery(_Query, frozen=True):
    pass


class RunsQuery(_Query, frozen=True):
    """`before`: the id of the last run of the page before."""

    all: bool = False
    limit: PositiveInt = 100
    before: str | None = None


class LogsQuery(_Query, frozen=True):
    """`offset` counts bytes of the attempt's output; `job` defaults to the first, `attempt` to the
    job's latest."""

    attempt: str | None = None
    job: str | None = None
    offset: Offset = 0


class PortQuery(_Query, frozen=True):
    """`job` as in the log's query."""

    job: str | None = None


class SshQuery(_Query, frozen=True):
    """`job` as in the log's query."""

    job: str | None = None


class EventsQuery(_Query, frozen=True):
    """`run`: id or name; `after`: the `seq` of the last event that is known."""

    run: str | None = None
    after: Offset = 0
    limit: PositiveInt = 1000


class BlobAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`size` in bytes."""

    sha256: str
    size: int


class HealthAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    version: str
    api_versions: tuple[str, ...]


class RunsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    runs: tuple[RunSummary, ...]


class NodesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[NodeView, ...]


class EventsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    events: tuple[EventView, ...]


class NodeKeyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """OpenSSH public key line of the controller, for the nodes' `authorized_keys`."""

    public_key: str


def decode_body(data: bytes, shape: type[T]) -> T:
    """Raises Invalid, naming the field."""
    try:
        return msgspec.json.decode(data or b"{}", type=shape)
    except msgspec.ValidationError as error:
        raise _invalid(error, "the body") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"the body is not JSON: {error}", code="not_json") from None
    except RecursionError:
        raise Invalid("the body is nested too deeply", code="not_json") from None


def decode_query(query: dict[str, str], shape: type[T]) -> T:
    """Raises Invalid, naming the field."""
    try:
        return msgspec.convert(query, shape, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(error, "the query") from None


def _invalid(error: msgspec.ValidationError, what: str) -> Invalid:
    text = str(error)
    named = re.search(r"field `([^`]+)`", text)
    place = re.search(r" - at `\$\.?([^`]*)`", text)
    parts = [found.group(1) for found in (place, named) if found and found.group(1)]
    message = re.sub(r" - at `[^`]*`", "", text)
    return Invalid(f"{what} is not as expected: {message}", field=".".join(parts) or None)
