"""When and how a user opens a dev environment: in the browser, by a link in a desktop IDE, by a
shell."""

from __future__ import annotations

from urllib.parse import quote

from fairlead.documents.runs import RunView
from fairlead.model.dev_environment import Ide
from fairlead.model.statuses import AttemptStatus

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
    if run.dev_environment is None or not run.jobs[0].attempts:
        return False
    attempts = run.jobs[0].attempts
    is_running = attempts[-1].status is AttemptStatus.RUNNING
    return is_running and (run.dev_environment.path is None or attempts[-1].ready)


def how_to_open(run: RunView, url: str) -> list[str]:
    """Return the ways to a dev environment, one line each; `url` is the controller's."""
    found = run.dev_environment
    if found is None:
        return []
    lines = []
    if found.path is not None:
        lines.append(f"{found.ide} in the browser: {url}/dashboard/open/{run.name}")
    target = link(found.ide, run.name, found.folder)
    if target is not None:
        lines.append(
            f"{found.ide}: {target} (it needs the entry of `fairlead ssh-config --install "
            f"{run.name}`)"
        )
    return [*lines, f"shell: fairlead ssh {run.name}"]
