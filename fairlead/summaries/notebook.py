"""Progress in a notebook: one line that changes in place; elsewhere lines on stderr when asked."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from html import escape
from typing import Any

Show = Callable[[str], None]


def shower(progress: bool | Show | None) -> Show:
    """Return what shows a line of progress. None: only a notebook shows it."""
    if callable(progress):
        return progress
    if progress is False:
        return _silent
    display = _display()
    if display is not None:
        return _InPlace(display)
    return _to_stderr() if progress else _silent


def _silent(text: str) -> None:
    pass


def _to_stderr() -> Show:
    last = ""

    def show(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            sys.stderr.write(f"{text}\n")

    return show


class _InPlace:
    """Replaces its line in a notebook's cell."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def __call__(self, text: str) -> None:
        content = {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}
        if self._handle is None:
            self._handle = self._display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def _display() -> Any:
    """Return IPython's `display` within a notebook's kernel, else None."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return importlib.import_module("IPython.display").display
