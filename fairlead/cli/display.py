"""The progress of a run in one line: redrawn on a terminal, printed once for each step in a
pipe."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Protocol

from fairlead.cli.output import note
from fairlead.summaries.progress import Step

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.status import Status


class Display(Protocol):
    def show(self, step: Step, *, output_flows: bool) -> None:
        """Show the step. `output_flows`: the job's output is on the same screen now."""

    def pause(self) -> None:
        """Leave the terminal to other output."""


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
    """A status line on a terminal; several threads use it."""

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
        shown = _rendered(step)
        with self._lock:
            if self._status is None:
                self._status = self._console.status(shown)
                self._status.start()
            self._status.update(shown)


def _rendered(step: Step) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    text = Text(f"{step.text} ({step.detail})" if step.detail else step.text)
    if not step.rows:
        return text
    table = Table.grid(padding=(0, 2))
    for row in step.rows:
        table.add_row(*(Text(cell) for cell in row))
    return Group(text, table)


def display() -> Display:
    return LiveDisplay() if sys.stderr.isatty() else PlainDisplay()
