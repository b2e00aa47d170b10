"""The outputs of a job: whether they are still to be stored, are stored, or are lost.

A task is not removed before its outputs are stored (docs/rules.md 2.14), so only the loss of the
node, or of the task on it, can lose them.
"""

from __future__ import annotations

from msgspec.structs import replace

from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.model import Attempt, CollectedOutputs
from controller.lifecycle.reports import OutputsCollected
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES, OutputsState
from fairlead.wire.sizes import counted_files


def state_of(attempt: Attempt) -> OutputsState:
    if attempt.seen.outputs is not None:
        return OutputsState.COLLECTED
    final = attempt.status in FINAL_ATTEMPT_STATUSES
    if attempt.seen.has_outputs:
        return OutputsState.LOST if final else OutputsState.COLLECTING
    unseen = final and attempt.running_at is not None and attempt.cleanup_unknown
    return OutputsState.LOST if unseen else OutputsState.NONE


def wanted(attempt: Attempt) -> bool:
    """Return whether outputs are to be stored before the task is removed."""
    return attempt.seen.has_outputs and attempt.seen.outputs is None


def collected(draft: Draft, attempt: Attempt, report: OutputsCollected) -> None:
    if attempt.seen.outputs is None:
        attempt = draft.change_attempt(attempt, seen=replace(attempt.seen, outputs=report.outputs))
        draft.record(
            EventKind.OUTPUTS,
            "OutputsCollected",
            attempt=attempt,
            from_status=OutputsState.COLLECTING,
            to_status=OutputsState.COLLECTED,
            message=sentence(report.outputs),
        )


def note_loss(draft: Draft, attempt: Attempt, cause: str) -> None:
    """Record that a final attempt's outputs are lost, if they are."""
    if state_of(attempt) is not OutputsState.LOST:
        return
    subject = "its outputs are"
    if not attempt.seen.has_outputs:
        subject = "what it wrote to its output folder is"
    draft.record(
        EventKind.OUTPUTS,
        cause,
        attempt=attempt,
        to_status=OutputsState.LOST,
        message=f"{subject} lost with its {_holder(attempt)}".rstrip(),
    )


def _holder(attempt: Attempt) -> str:
    return "container" if attempt.carrier else f"node {attempt.node_name or ''}"


def sentence(outputs: CollectedOutputs) -> str:
    """Return the stored outputs in words."""
    stored = f"{counted_files(outputs.files)}, {outputs.size} bytes"
    if not outputs.left_out:
        return stored
    return (
        f"{stored}; left out: {counted_files(outputs.left_out)}, {outputs.left_out_size} bytes, "
        f"which are beyond the limit of outputs or are no files, folders or links within"
    )
