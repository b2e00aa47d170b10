"""The page of dev environments: how each is opened, and when it stops if nobody uses it."""

from __future__ import annotations

import msgspec

from controller.api.runs.runs import get_run
from controller.lifecycle.model import RunState, RunType
from controller.service.jobs.terminals import why_no_ssh
from controller.web.page import Page, PageRoute, Visit
from controller.web.pages.durations import lasting
from controller.web.pages.runs import RunRow, run_row
from fairlead.documents.runs import RunView
from fairlead.summaries.dev_environments import link, opens


class Ways(msgspec.Struct, frozen=True, kw_only=True):
    """How a dev environment is opened. `browser`: whether a browser opens it; `desktop`: a link of
    the IDE that needs the entry of `fairlead ssh-config`; None: not in this way. `no_ssh`: why
    SSH does not open it, and with it no desktop IDE."""

    name: str
    ide: str
    can_open: bool
    browser: bool
    desktop: str | None
    no_ssh: str | None


class EnvironmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """`limit`: how long it may be left alone, empty if forever. `unused_since`: None: it is in
    use."""

    run: RunRow
    ways: Ways
    limit: str
    unused_since: str | None


def ways_of(state: RunState, view: RunView) -> Ways | None:
    """Return how the run, whose view this is, is opened; None: it is no dev environment, or it has
    ended."""
    found = view.dev_environment
    if found is None or view.finished_at is not None:
        return None
    no_ssh = why_no_ssh(state, state.jobs[0])
    return Ways(
        name=view.name,
        ide=found.ide or "",
        can_open=opens(view),
        browser=found.path is not None,
        desktop=None if no_ssh else link(found.ide, view.name, found.folder),
        no_ssh=no_ssh,
    )


def environment_row(row: RunRow, view: RunView, ways: Ways) -> EnvironmentRow:
    found = view.dev_environment
    duration = None if found is None else found.inactivity_duration
    return EnvironmentRow(
        run=row,
        ways=ways,
        limit="" if duration is None else lasting(duration),
        unused_since=None if found is None else found.inactive_since,
    )


async def list_environments(visit: Visit) -> Page:
    service = visit.service
    names, positions = service.machines.nodes.names(), service.runs.queue.positions()
    rows = []
    for state in service.runs.lookup.live_of(RunType.DEV_ENVIRONMENT, visit.user):
        view = await get_run(visit.as_call(run=state.run.id))
        ways = ways_of(state, view)
        if ways is not None:
            row = run_row(state, names, positions.get(state.run.id))
            rows.append(environment_row(row, view, ways))
    return Page(
        template="dev_environments.html",
        title="Dev environments",
        section="Dev environments",
        context={"environments": rows},
    )


PAGES: tuple[PageRoute, ...] = (
    PageRoute(path="/dev-environments", handler=list_environments, shared=True),
)
