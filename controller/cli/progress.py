"""How a run is doing, in one line: redrawn on a terminal, told once per step in a pipe."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from controller.api.documents import AttemptView, JobView, RunView
from controller.cli.output import note, size
from controller.lifecycle.reasons import ROWS, RUN_SENTENCES
from controller.lifecycle.statuses import AttemptStatus, RunStatus
from shim.schemas import PullProgress

if TYPE_CHECKING:
    from rich.status import Status


class Step(msgspec.Struct, frozen=True):
    """`detail` changes often and is for terminals only; a `lasting` step stays on the screen."""

    text: str
    detail: str = ""
    lasting: bool = False


def step_of(run: RunView, progress: Mapping[str, PullProgress]) -> Step:
    """What a run that is not final does now; of its jobs, the first that waits speaks."""
    if run.status in (RunStatus.PENDING, RunStatus.SUBMITTED):
        reason = next((job.pending_reason for job in run.jobs if job.pending_reason), None)
        return Step(f"queued: {reason}" if reason else "queued")
    if run.status is RunStatus.PROVISIONING:
        return _preparing(run, progress)
    if run.status is RunStatus.RUNNING:
        return Step(f"running on {', '.join(_nodes(run)) or 'a node'}", lasting=True)
    return Step(f"ending: {why(run)}")


def _preparing(run: RunView, progress: Mapping[str, PullProgress]) -> Step:
    for attempt in (job.attempts[-1] for job in run.jobs if job.attempts):
        if attempt.status is AttemptStatus.PROVISIONING:
            return Step(f"placed on {attempt.node}")
        if attempt.status is AttemptStatus.PULLING:
            pull = progress.get(attempt.id)
            if pull is None:
                return Step(f"starting on {attempt.node}")
            return Step(
                f"pulling the image on {attempt.node}",
                f"{size(pull.downloaded)} of {size(pull.total)}",
            )
    return Step("starting")


def _nodes(run: RunView) -> list[str]:
    nodes = (job.attempts[-1].node for job in run.jobs if job.attempts)
    return list(dict.fromkeys(node for node in nodes if node))


def why(run: RunView) -> str:
    """The sentence of the attempt that decided, else of the run's reason."""
    failed = failed_attempt(run)
    if failed is not None:
        sentence = failed.message or (
            ROWS[failed.termination_reason].sentence if failed.termination_reason else ""
        )
        if sentence:
            return sentence
    if run.message:
        return run.message
    return RUN_SENTENCES[run.termination_reason] if run.termination_reason else str(run.status)


def failed_attempt(run: RunView) -> AttemptView | None:
    """The first job's last attempt that ended badly by itself."""
    for job in run.jobs:
        last = job.attempts[-1] if job.attempts else None
        if last is not None and last.status is AttemptStatus.FAILED:
            return last
    return None


def exit_status(run: RunView) -> int:
    """Of a final run: 0 when DONE, else the job's own exit code, 1 when it has none."""
    if run.status is RunStatus.DONE:
        return 0
    codes = (job.attempts[-1].exit_code for job in run.jobs if job.attempts)
    return next((code for code in codes if code), 1)


class Display(Protocol):
    def show(self, step: Step, *, output_flows: bool) -> None:
        """`output_flows`: the job's output is on the same screen now."""

    def pause(self) -> None:
        """Leave the terminal to others."""


class PlainDisplay:
    def __init__(self) -> None:
        self._last = ""

    def show(self, step: Step, *, output_flows: bool) -> None:
        if step.text != self._last:
            self._last = step.text
            note(step.text)

    def pause(self) -> None:
        pass


class LiveDisplay:
    """Used by several threads."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._status: Status | None = None
        self._last = ""
        self._lock = threading.Lock()

    def show(self, step: Step, *, output_flows: bool) -> None:
        if step.lasting:
            self._leave(step)
        elif not output_flows:
            self._draw(step)
        self._last = step.text

    def pause(self) -> None:
        with self._lock:
            if self._status is not None:
                self._status.stop()
                self._status = None

    def _leave(self, step: Step) -> None:
        self.pause()
        if step.text != self._last:
            note(step.text)

    def _draw(self, step: Step) -> None:
        from rich.text import Text

        text = Text(f"{step.text} ({step.detail})" if step.detail else step.text)
        with self._lock:
            if self._status is None:
                self._status = self._console.status(text)
                self._status.start()
            self._status.update(text)


def display() -> Display:
    return LiveDisplay() if sys.stderr.isatty() else PlainDisplay()


def job_name(job: JobView) -> str:
    return f"{job.group}/{job.cookie}"
