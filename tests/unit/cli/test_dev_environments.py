"""The ways to a dev environment, as they are shown."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from controller.api.views import run_view
from controller.lifecycle.model import RunState
from fairlead.documents.runs import RunView
from fairlead.model.dev_environment import DevEnvironment, Ide
from fairlead.summaries.dev_environments import how_to_open, link, opens
from tests.unit.lifecycle.test_inactivity import NOTES, DeskPlay

URL = "http://127.0.0.1:8700"


def read(state: RunState) -> RunView:
    return msgspec.json.decode(msgspec.json.encode(run_view(state, {})), type=RunView)


@pytest.mark.parametrize(
    ("ide", "shown"),
    [
        (Ide.VSCODE, "vscode://vscode-remote/ssh-remote+desk/my%20code"),
        (Ide.CURSOR, "cursor://vscode-remote/ssh-remote+desk/my%20code"),
        (Ide.WINDSURF, "windsurf://vscode-remote/ssh-remote+desk/my%20code"),
        (Ide.ZED, "zed://ssh/desk/my%20code"),
        (Ide.JUPYTER, None),
        (None, None),
    ],
)
def test_each_desktop_ide_has_its_link(ide: Ide | None, shown: str | None) -> None:
    assert link(ide, "desk", "/my code") == shown


def ways(state: RunState, wanted: DevEnvironment) -> list[str]:
    run = replace(state.run, policy=replace(state.run.policy, dev_environment=wanted))
    return how_to_open(read(replace(state, run=run)), URL)


def test_the_lines_lead_to_the_browser_or_name_the_entry() -> None:
    state = DeskPlay().state

    assert ways(state, NOTES) == [
        "jupyter in the browser: http://127.0.0.1:8700/dashboard/open/play",
        "shell: fairlead ssh play",
    ]
    desk, shell = ways(state, DevEnvironment(ide=Ide.ZED, folder="/code"))
    assert desk.startswith("zed: zed://ssh/play/code (")
    assert "`fairlead ssh-config --install play`" in desk
    assert shell == "shell: fairlead ssh play"


def test_it_opens_when_it_runs_and_in_the_browser_when_it_answers() -> None:
    desk, notes = DeskPlay(), DeskPlay(NOTES)
    assert not opens(read(desk.state))
    assert opens(read(desk.to_running().state))
    assert not opens(read(notes.to_running().state))
    assert opens(read(notes.answers().state))
