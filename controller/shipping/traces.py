"""The life of a run as a trace of OpenTelemetry, made when it has ended."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from controller.lifecycle.model import Attempt, Job, RunState
from controller.shipping.log_documents import RESOURCE, attributes
from fairlead.model.statuses import AttemptStatus, RunStatus

MAX_ATTEMPTS = 1000
"""Of one run; the trace of a larger one says how many it leaves out."""
_INTERNAL = 1
_OK, _ERROR = 1, 2
_GOOD = frozenset({RunStatus.DONE, AttemptStatus.DONE})


class Span(msgspec.Struct, frozen=True, rename="camel"):
    """A span as OTLP writes it in JSON: ids are hexadecimal, times strings of nanoseconds."""

    trace_id: str
    span_id: str
    name: str
    start_time_unix_nano: str
    end_time_unix_nano: str
    attributes: list[object]
    status: dict[str, object]
    kind: int = _INTERNAL
    parent_span_id: str = ""


def spans(state: RunState) -> list[Span]:
    """Return the spans of an ended run: the run, its attempts, and the stages of each. The same run
    gives the same ids, so a copy that is sent twice is one trace."""
    run = state.run
    assert run.finished_at is not None
    tried = [(job, attempt) for job in state.jobs for attempt in job.attempts]
    root = _span(
        state,
        run.id,
        f"run {run.name}",
        (run.submitted_at, run.finished_at),
        is_good=run.status in _GOOD,
        about={
            "fairlead.run": run.name,
            "fairlead.run_id": run.id,
            "fairlead.user": run.user,
            "fairlead.type": run.type.value,
            "fairlead.status": run.status.value,
            "fairlead.reason": None if run.reason is None else run.reason.value,
            "fairlead.attempts_left_out": max(0, len(tried) - MAX_ATTEMPTS) or None,
        },
    )
    of_attempts = (
        span for job, attempt in tried[:MAX_ATTEMPTS] for span in _of_attempt(state, job, attempt)
    )
    return [root, *of_attempts]


def document(batch: Sequence[Sequence[Span]]) -> bytes:
    """Return the body of /v1/traces (ExportTraceServiceRequest in JSON)."""
    scope = {"scope": {"name": "fairlead"}, "spans": [span for one in batch for span in one]}
    return msgspec.json.encode({"resourceSpans": [{"resource": RESOURCE, "scopeSpans": [scope]}]})


def stages(attempt: Attempt) -> Iterator[tuple[str, float, float]]:
    """Yield the name, begin and end of each stage that the attempt has reached."""
    moments = [
        ("queue", attempt.submitted_at),
        ("place", attempt.provisioned_at),
        ("pull", attempt.pulling_at),
        ("run", attempt.running_at),
        ("end", attempt.terminating_at),
        ("", attempt.finished_at),
    ]
    known = [(name, at) for name, at in moments if at is not None]
    for (name, began), (_, ended) in pairwise(known):
        pulled = attempt.pull.progressed_at
        if name == "pull" and pulled is not None and began < pulled < ended:
            yield name, began, pulled
            yield "start", pulled, ended
        else:
            yield name, began, ended


def _of_attempt(state: RunState, job: Job, attempt: Attempt) -> Iterator[Span]:
    if attempt.finished_at is None:
        return
    yield _span(
        state,
        attempt.id,
        f"attempt {job.group}/{job.cookie}/{attempt.number}",
        (attempt.submitted_at, attempt.finished_at),
        parent=state.run.id,
        is_good=attempt.status in _GOOD,
        about={
            "fairlead.attempt": attempt.id,
            "fairlead.node": attempt.node_name,
            "fairlead.reason": None if attempt.reason is None else attempt.reason.value,
            "fairlead.exit_code": attempt.exit_code,
        },
    )
    for name, began, ended in stages(attempt):
        own = f"{attempt.id}/{name}"
        yield _span(state, own, name, (began, ended), parent=attempt.id, is_good=True, about={})


def _span(
    state: RunState,
    own: str,
    name: str,
    times: tuple[float, float],
    *,
    is_good: bool,
    about: dict[str, str | int | None],
    parent: str | None = None,
) -> Span:
    began, ended = times
    return Span(
        trace_id=_hex(state.run.id, 32),
        span_id=_hex(own, 16),
        parent_span_id="" if parent is None else _hex(parent, 16),
        name=name,
        start_time_unix_nano=str(round(began * 1e9)),
        # The clock may have been set back in between.
        end_time_unix_nano=str(round(max(began, ended) * 1e9)),
        attributes=attributes(about),
        status={"code": _OK if is_good else _ERROR},
    )


def _hex(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
