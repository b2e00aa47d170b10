"""How a user opens a dev environment, as lines of a terminal."""

from __future__ import annotations

from controller.api.dev_environments import link
from controller.api.documents import RunView


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
