"""Parents and children among live runs: whose end concerns whom."""

from __future__ import annotations

from controller.lifecycle.model import RunState
from controller.lifecycle.reports import ParentEnded
from controller.lifecycle.statuses import FINAL_RUN_STATUSES, RunStatus


class ParentGone(Exception):
    """The run that a new one names as its parent is not live."""


class Families:
    def __init__(self) -> None:
        self._children: dict[str, dict[str, None]] = {}

    def add(self, state: RunState) -> None:
        parent_id = state.run.parent_id
        if parent_id is not None:
            self._children.setdefault(parent_id, {})[state.run.id] = None

    def remove(self, state: RunState) -> None:
        """The run has ended, or never came to be."""
        parent_id = state.run.parent_id
        children = self._children.get(parent_id or "")
        if parent_id is not None and children is not None:
            children.pop(state.run.id, None)
            if not children:
                del self._children[parent_id]

    def children_of(self, run_id: str) -> tuple[str, ...]:
        """The ids of its live children, in the order of their submission."""
        return tuple(self._children.get(run_id, ()))

    def told_by(self, state: RunState) -> list[ParentEnded]:
        """What the children of a run are told that has ended other than DONE."""
        run = state.run
        if run.status not in FINAL_RUN_STATUSES or run.status is RunStatus.DONE:
            return []
        message = f"its parent run {run.name} ended as {run.status}"
        return [
            ParentEnded(run_id=child_id, parent_id=run.id, message=message)
            for child_id in self._children.get(run.id, ())
        ]
