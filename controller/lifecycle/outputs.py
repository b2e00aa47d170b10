"""The outputs of a job: whether they are still to be stored, are stored, or are lost.

A task is not removed before its outputs are stored (docs/rules.md 2.14), so only the loss of the
node, or of the task on it, can lose them.
"""

from __future__ import annotations

from enum import StrEnum

from controller.lifecycle.draft import Draft
from controller.lifecycle.events import EventKind
from controller.lifecycle.model import Attempt, CollectedOutputs
from controller.lifecycle.reports import OutputsCollected
from controller.lifecycle.statuses import FINAL_ATTEMPT_STATUSES


class OutputsState(StrEnum):
    NONE = "none"
    """The job left nothing, or has not ended yet."""
    COLLECTING = "collecting"
    """They are on the node and are being stored."""
    COLLECTED = "collected"
    LOST = "lost"
    """They were on a node, or may have been, when it was lost."""


def state_of(attempt: Attempt) -> OutputsState:
    if attempt.outputs is not None:
        return OutputsState.COLLECTED
    final = attempt.status in FINAL_ATTEMPT_STATUSES
    if attempt.has_outputs:
        return OutputsState.LOST if final else OutputsState.COLLECTING
    unseen = final and attempt.running_at is not None and attempt.cleanup_unknown
    return OutputsState.LOST if unseen else OutputsState.NONE


def wanted(attempt: Attempt) -> bool:
    """Return whether outputs are to be stored before the task is removed."""
    return attempt.has_outputs and attempt.outputs is None


def collected(draft: Draft, attempt: Attempt, report: OutputsCollected) -> None:
    if attempt.outputs is None:
        attempt = draft.change_attempt(attempt, outputs=report.outputs)
        draft.note(
            EventKind.OUTPUTS,
            attempt,
            "OutputsCollected",
            from_status=OutputsState.COLLECTING,
            to_status=OutputsState.COLLECTED,
            message=sentence(report.outputs),
        )


def note_loss(draft: Draft, attempt: Attempt, cause: str) -> None:
    """Record that a final attempt's outputs are lost, if they are."""
    if state_of(attempt) is not OutputsState.LOST:
        return
    sure = "its outputs are" if attempt.has_outputs else "what it wrote to its output folder is"
    draft.note(
        EventKind.OUTPUTS,
        attempt,
        cause,
        to_status=OutputsState.LOST,
        message=f"{sure} lost with its node {attempt.node_name or ''}".rstrip(),
    )


def sentence(outputs: CollectedOutputs) -> str:
    """Return the stored outputs in words."""
    said = f"{counted_files(outputs.files)}, {outputs.size} bytes"
    if not outputs.left_out:
        return said
    return (
        f"{said}; left out: {counted_files(outputs.left_out)}, {outputs.left_out_size} bytes, which"
        f" are beyond the limit of outputs or are no files, folders or links within"
    )


def counted_files(count: int) -> str:
    """Return the number of files in words."""
    return "1 file" if count == 1 else f"{count} files"
