"""The parameter sets of a sweep on its page: a table that is sorted and filtered by parameter, with
what can be done to each set and to those that the filter leaves."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.refusals import Invalid
from controller.lifecycle.model import RunState
from controller.lifecycle.sweeps.ended import brought_back, folded
from controller.lifecycle.sweeps.sets import counts, is_ending
from controller.service.runs.sweeps import ListedSet, chosen
from controller.web.page import Done, PageRoute, Visit
from controller.web.pages.durations import lasting
from controller.web.pages.jobs import ROWS, Chosen, StateLink
from controller.web.states import Badge, badge
from fairlead.model.job_links import JobLink
from fairlead.model.reasons import ROWS as REASONS
from fairlead.model.statuses import IrisState
from fairlead.model.sweep import SetStatus, as_text
from fairlead.wire.errors import Refused

_SHOWN_AS = {
    SetStatus.WAITING: IrisState.PENDING,
    SetStatus.ACTIVE: IrisState.RUNNING,
    SetStatus.DONE: IrisState.SUCCEEDED,
    SetStatus.FAILED: IrisState.FAILED,
    SetStatus.STOPPED: IrisState.KILLED,
}
_FIXED = ("", "status", "exit", "ran")
"""The orders that are no parameter's; the first is by number."""


class SetRow(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    values: tuple[str, ...]
    badge: Badge
    status: str
    why: str
    node: str
    exit_code: int | None
    ran: str
    attempts: int
    attempt_id: str | None
    job_id: str | None
    links: tuple[JobLink, ...]
    can_retry: bool
    can_stop: bool


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column's head, whose link sorts by it; a second click turns the order round."""

    label: str
    address: str
    order: str
    """`ascending`, `descending`, or empty."""


class SetsPage(msgspec.Struct, frozen=True, kw_only=True):
    """`problem`: what is wrong with the filter; `which`: it, if it chooses sets."""

    chosen: Chosen
    columns: tuple[Column, ...]
    names: tuple[str, ...]
    rows: tuple[SetRow, ...]
    states: tuple[StateLink, ...]
    problem: str
    begin: int
    end: int
    found: int
    total: int
    before: str | None
    after: str | None
    max_parallel: int | None
    lives: bool
    may_retry: bool
    """It lives, or has ended, when what is retried becomes a new run."""
    has_ended: bool


def page_state(state: RunState, job: str, attempt: str) -> RunState:
    """Return the state of a sweep that its page is made of: with the jobs that live, and the one
    that the address names."""
    kept = folded(state)
    named = {
        one.replica
        for one in kept.ended.jobs
        if one.id == job or any(past.id == attempt for past in one.attempts)
    }
    return brought_back(kept, named)


def chosen_sets(visit: Visit) -> Chosen:
    """Raises Invalid for a status or a page that there is not."""
    asked = Chosen(**{name: visit.query(name) for name in Chosen.__struct_fields__})
    if asked.state not in ("", *SetStatus):
        raise Invalid(f"{asked.state!r} is no status of a parameter set", field="state")
    page = asked.page
    if page and not (page.isascii() and page.isdecimal() and 0 < len(page) < 6):
        raise Invalid(f"{page!r} is not the number of a page", field="page")
    return asked


def sets_page(state: RunState, asked: Chosen, run_address: str, now: float) -> SetsPage:
    """`state`: with all of the sweep's jobs; `now`: Unix seconds. Raises Invalid for an order that
    there is not."""
    run, content = state.run, state.sweep
    assert run.sweep is not None, "the run is a sweep"
    assert content is not None, "a sweep has its content"
    names = content.sets.names
    by = asked.sort.removeprefix("-")
    if by not in (*_FIXED, *(f"param.{name}" for name in names)):
        raise Invalid(f"{asked.sort!r} is no order of parameter sets", field="sort")
    found, problem = _found(state, asked)
    found = _in_order(found, asked.sort, now)
    pages = max(-(-len(found) // ROWS), 1)
    page = min(max(int(asked.page or 1), 1), pages)
    shown = found[(page - 1) * ROWS : page * ROWS]
    lives, has_ended = not is_ending(run), run.finished_at is not None
    may_retry = lives or has_ended
    return SetsPage(
        chosen=msgspec.structs.replace(asked, page=str(page) if page > 1 else ""),
        columns=_columns(names, asked, run_address),
        names=names,
        rows=tuple(_row(one, names, now, lives=lives, may_retry=may_retry) for one in shown),
        states=_state_links(state, asked, run_address),
        problem=problem,
        begin=(page - 1) * ROWS + 1,
        end=(page - 1) * ROWS + len(shown),
        found=len(found),
        total=run.sweep.total,
        before=asked.address(run_address, page=str(page - 1)) if page > 1 else None,
        after=asked.address(run_address, page=str(page + 1)) if page < pages else None,
        max_parallel=run.sweep.max_parallel,
        lives=lives,
        may_retry=may_retry,
        has_ended=has_ended,
    )


def _found(state: RunState, asked: Chosen) -> tuple[list[ListedSet], str]:
    """Return the sets that the filter leaves, and what is wrong with it: it is asked for while it
    is being typed."""
    statuses = [SetStatus(asked.state)] if asked.state else []
    try:
        return list(chosen(state, asked.find or None, statuses)), ""
    except Refused as error:
        return [], error.message


def _in_order(sets: list[ListedSet], sort: str, now: float) -> list[ListedSet]:
    by, backwards = sort.removeprefix("-"), sort.startswith("-")

    def key(one: ListedSet) -> tuple[object, ...]:
        last = one.last
        match by:
            case "status":
                return (tuple(SetStatus).index(one.status),)
            case "exit":
                return (-1 if last is None or last.exit_code is None else last.exit_code,)
            case "ran":
                return (_seconds(one, now) or -1.0,)
            case "":
                return ()
        value = one.parameters[by.removeprefix("param.")]
        return (isinstance(value, str), value)

    return sorted(sets, key=lambda one: (*key(one), one.number), reverse=backwards)


def _seconds(one: ListedSet, now: float) -> float | None:
    last = one.last
    if last is None or last.running_at is None:
        return None
    return max(0.0, (last.terminating_at or last.finished_at or now) - last.running_at)


def _columns(names: Sequence[str], asked: Chosen, run_address: str) -> tuple[Column, ...]:
    wanted = [("Job", ""), *((name, f"param.{name}") for name in names)]
    wanted += [("Status", "status"), ("Exit", "exit"), ("Ran", "ran")]
    return tuple(
        Column(
            label=label,
            address=asked.address(run_address, sort=f"-{by}" if asked.sort == by else by),
            order="ascending"
            if asked.sort == by
            else "descending"
            if asked.sort == f"-{by}"
            else "",
        )
        for label, by in wanted
    )


def _state_links(state: RunState, asked: Chosen, run_address: str) -> tuple[StateLink, ...]:
    counted = counts(state)
    links: list[tuple[str, Badge | None, str]] = [
        ("", None, f"all {state.run.sweep.total if state.run.sweep else 0}")
    ]
    for status in SetStatus:
        number = getattr(counted, status.value)
        if number or asked.state == status:
            links.append((status.value, None, f"{status} \N{MULTIPLICATION SIGN} {number}"))
    return tuple(
        StateLink(
            badge=shown,
            label=label,
            address=asked.address(run_address, state=value),
            is_chosen=asked.state == value,
        )
        for value, shown, label in links
    )


def _row(
    one: ListedSet, names: Sequence[str], now: float, *, lives: bool, may_retry: bool
) -> SetRow:
    last, seconds = one.last, _seconds(one, now)
    return SetRow(
        number=one.number,
        values=tuple(as_text(one.parameters[name]) for name in names),
        badge=badge(_SHOWN_AS[one.status]),
        status=one.status.value,
        why=_why(one),
        node="" if last is None else last.node_name or "",
        exit_code=None if last is None else last.exit_code,
        ran="" if seconds is None else lasting(seconds),
        attempts=max((len(job.attempts) for job in one.jobs), default=0),
        attempt_id=None if last is None else last.id,
        job_id=None if last is None else last.job_id,
        links=() if last is None else last.links,
        can_retry=may_retry and one.status in (SetStatus.FAILED, SetStatus.STOPPED),
        can_stop=lives and one.status in (SetStatus.WAITING, SetStatus.ACTIVE),
    )


def _why(one: ListedSet) -> str:
    last = one.last
    if last is None or last.reason is None or one.status is SetStatus.DONE:
        return ""
    return last.message or REASONS[last.reason].sentence


async def act_on_sets(visit: Visit) -> Done:
    """Retry or stop sets. Raises NotFound, Forbidden, Conflict, Invalid, StoreUnavailable."""
    form = await visit.request.post()
    which = str(form.get("which", "")).strip() or None
    run_id = (await visit.service.runs.lookup.seen(visit.path("run"), visit.user)).run.id
    sweeps = visit.service.runs.sweeps
    match visit.path("action"):
        case "retry":
            found = await sweeps.retry(run_id, which=which, user=visit.user)
            new_id = found.state.run.id
            if new_id != run_id:
                done = f"the run has ended: its sets are the new run {new_id}"
                message = "; ".join((done, *found.left_out))
                return Done(message=message, location=f"/dashboard/runs/{new_id}")
            if found.left_out:
                return Done(message="; ".join(found.left_out))
        case "stop":
            await sweeps.stop(run_id, which=which, user=visit.user)
        case other:
            raise Invalid(f"there is no action {other!r}", field="action")
    return Done(message=f"{visit.path('action')} of {which or 'the sets'} was requested")


async def resize(visit: Visit) -> Done:
    """Raises NotFound, Forbidden, Conflict, Invalid, StoreUnavailable."""
    form = await visit.request.post()
    written = str(form.get("max_parallel", "")).strip()
    if written and not (written.isascii() and written.isdecimal() and len(written) < 7):
        raise Invalid(f"{written!r} is not a number of sets", field="max_parallel")
    run_id = (await visit.service.runs.lookup.seen(visit.path("run"), visit.user)).run.id
    most = int(written) if written else None
    await visit.service.runs.sweeps.resize(run_id, max_parallel=most, user=visit.user)
    return Done(message=f"at most {most or 'any number of'} sets run at once")


PAGES: tuple[PageRoute, ...] = (
    PageRoute(method="POST", path="/runs/{run}/sets/{action}", handler=act_on_sets),
    PageRoute(method="POST", path="/runs/{run}/parallel", handler=resize),
)
