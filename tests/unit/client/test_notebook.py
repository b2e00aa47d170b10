"""The progress of a wait is shown."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fairlead.summaries.notebook import shower


class Cell:
    """A notebook's cell: what is displayed, and what replaced it."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, content: dict[str, str], **_: Any) -> Cell:
        self.shown.append(content["text/html"])
        return self

    def update(self, content: dict[str, str], **_: Any) -> None:
        self.shown[-1] = content["text/html"]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    made = Cell()
    shell = SimpleNamespace(kernel=object())
    for name in ("IPython", "IPython.display"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: shell, raising=False)
    monkeypatch.setattr(sys.modules["IPython.display"], "display", made.display, raising=False)
    return made


def test_a_notebook_shows_one_line_that_changes(cell: Cell) -> None:
    show = shower(None)
    show("hello: queued")
    show("hello: <done>")
    assert cell.shown == ["<pre>hello: &lt;done&gt;</pre>"]


def test_a_notebook_shows_nothing_when_told_so(cell: Cell) -> None:
    shower(False)("hello: queued")
    assert cell.shown == []


def test_elsewhere_steps_are_printed_once_and_only_on_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shower(None)("hello: queued")
    show = shower(True)
    show("hello: queued")
    show("hello: queued")
    show("hello: done")
    assert capsys.readouterr().err == "hello: queued\nhello: done\n"
