"""What requests may carry: bodies and query parameters.

Unknown fields of a body are ignored, so that a newer client can talk to an older controller.
Unknown query parameters are refused by name: without its filter, an answer would be wrong.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec

from controller.api.documents import EventView, NodeView, PastAttemptView, RunSummary
from controller.service.errors import Invalid
from controller.service.submissions import IfExists

T = TypeVar("T")

PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=1000)]
ClientKey = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    pass


class _Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class SubmitBody(_Body, frozen=True):
    """`configuration`: the YAML's content. The same `client_key` gives the same run again."""

    configuration: dict[str, Any]
    name: str | None = None
    client_key: ClientKey | None = None
    ssh_keys: tuple[str, ...] = ()
    """OpenSSH public key lines: they give SSH access to the run's containers."""
    if_exists: IfExists = IfExists.ERROR
    """When a live run has the name: refuse, answer with that run (status 200), or stop it and
    answer with it (status 202). In the last case the same request submits this run once the old one
    has ended. Until then, and for 30 s after, the name is reserved for this client."""
    parent: str | None = None
    """Id or name of the live run that is this run's parent."""


class StopBody(_Body, frozen=True):
    abort: bool = False


class SuspendBody(_Body, frozen=True):
    """`abort_running`: also end running jobs, with a grace of 10 s."""

    abort_running: bool = False


class ScaleBody(_Body, frozen=True):
    """`nodes`: the new number of jobs of the group."""

    group: str
    nodes: int


class DrainBody(_Body, frozen=True):
    """`deadline`: seconds from now; jobs that still run there then end as node_drained."""

    reason: str | None = None
    deadline: float | None = None


class CordonBody(_Body, frozen=True):
    reason: str | None = None


class NodeBody(_Body, frozen=True):
    """The changes. `attributes`: null removes one. `host_key` and `accept_host_key` pin another
    host key, as when a node is added."""

    attributes: dict[str, str | None] = {}
    fleet: str | None = None
    host_key: str | None = None
    accept_host_key: str | None = None


class RegisterBody(_Body, frozen=True):
    """The address of the node's sshd."""

    host: str
    port: int = 22


class NewFleetBody(_Body, frozen=True):
    """`placement`: the attribute whose value the nodes of one gang share."""

    name: str
    placement: str | None = None
    attributes: dict[str, str] = {}


class FleetBody(_Body, frozen=True):
    """The changes. An empty `placement` and an attribute of null are removed."""

    placement: str | None = None
    attributes: dict[str, str | None] = {}


class RemoveQuery(_Query, frozen=True):
    """`lost`: the machine is gone for good, with everything that ran there."""

    lost: bool = False


class NoQuery(_Query, frozen=True):
    pass


class RunsQuery(_Query, frozen=True):
    """`cursor`: the `next_cursor` of the previous page (`before` is its old name)."""

    all: bool = False
    limit: PositiveInt = 100
    cursor: str | None = None
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


class JobQuery(_Query, frozen=True):
    """`job` as in the log's query, else all."""

    job: str | None = None


class EventsWatchQuery(_Query, frozen=True):
    """`run`: id or name; default: every run that the caller may see. `cursor`: the `seq` of the
    last known event."""

    run: str | None = None
    cursor: Offset = 0


class AttemptsQuery(_Query, frozen=True):
    """`job`: as in the log's query; `incarnation`: a gang's, by number or id; `cursor`: the
    `next_cursor` of the previous page."""

    job: str | None = None
    occurrence: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] | None = None
    incarnation: str | None = None
    cursor: str | None = None
    limit: PositiveInt = 1000


class EventsQuery(_Query, frozen=True):
    """`run`: id or name; `cursor`: the `next_cursor` of the previous page, or the `seq` of the last
    known event (`after` is its old name)."""

    run: str | None = None
    cursor: str | None = None
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
    next_cursor: str | None


class NodesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[NodeView, ...]
    next_cursor: str | None


class AttemptsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    attempts: tuple[PastAttemptView, ...]
    next_cursor: str | None


class EventsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    events: tuple[EventView, ...]
    next_cursor: str | None


class NodeKeyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's OpenSSH public key line, for the nodes' `authorized_keys`."""

    public_key: str


def decode_body(data: bytes, shape: type[T]) -> T:
    """Return the body. Raises Invalid with the field."""
    try:
        return msgspec.json.decode(data or b"{}", type=shape)
    except msgspec.ValidationError as error:
        raise _invalid(error, "the body") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"the body is not JSON: {error}", code="not_json") from None
    except RecursionError:
        raise Invalid("the body is nested too deeply", code="not_json") from None


def decode_query(query: dict[str, str], shape: type[T]) -> T:
    """Return the query. Raises Invalid with the field."""
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
