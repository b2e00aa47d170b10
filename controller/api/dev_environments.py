"""When a dev environment can be opened, and the link that opens it in a desktop IDE."""

from __future__ import annotations

from urllib.parse import quote

from controller.api.documents import RunView
from controller.lifecycle.dev_environment import Ide
from controller.lifecycle.statuses import AttemptStatus

_OF_VSCODE = (Ide.VSCODE, Ide.CURSOR, Ide.WINDSURF)
"""The IDEs that are built from VS Code, and their own schemes for the same link."""


def link(ide: Ide | None, host: str, folder: str) -> str | None:
    """Return the link that opens `folder` of the SSH host in a desktop IDE; None: it has none."""
    path = quote(folder)
    if ide in _OF_VSCODE:
        return f"{ide}://vscode-remote/ssh-remote+{host}{path}"
    return f"zed://ssh/{host}{path}" if ide is Ide.ZED else None


def opens(run: RunView) -> bool:
    """Return whether the dev environment can be opened now."""
    attempts = run.jobs[0].attempts
    if run.dev_environment is None or not attempts:
        return False
    is_running = attempts[-1].status is AttemptStatus.RUNNING
    return is_running and (run.dev_environment.path is None or attempts[-1].ready)
