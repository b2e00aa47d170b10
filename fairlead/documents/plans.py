"""What a submission would do, what a run waits for, and where jobs could go."""

from __future__ import annotations

import msgspec

from fairlead.documents.base import View
from fairlead.documents.sweeps import SweepPlanView
from fairlead.model.answers import OfferedPlace, PlannedPlace, PlannedRent, Waiting
from fairlead.model.reasons import Reason
from fairlead.model.statuses import AttemptStatus, RunStatus


class UnderWayView(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that wait for something other than an allocation.

    `until`: when the first of them ends as `ends_as`, unless what it waits for comes before;
    without `ends_as`: when it goes on.
    """

    jobs: tuple[str, ...]
    status: AttemptStatus
    what: str
    until: str | None
    ends_as: Reason | None


class ExplainView(msgspec.Struct, frozen=True, kw_only=True):
    """`about`: what the run waits for besides allocations; always set when `waiting` is empty."""

    run: str
    name: str
    status: RunStatus
    about: str | None
    waiting: tuple[Waiting, ...]
    under_way: tuple[UnderWayView, ...] = ()


class GroupPlanView(View, frozen=True):
    """The environment of a group's jobs at their start. `image`: null where the nodes to which they
    would go have no images. `python`: the version in their venv; null: they have none. `setup`: the
    number of its commands."""

    group: str
    image: str | None
    python: str | None
    setup: int


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """`refused`: why a submit would be refused, and `field` the field; then `jobs` is empty."""

    jobs: tuple[PlannedPlace, ...]
    refused: str | None
    field: str | None
    warning: str | None
    groups: tuple[GroupPlanView, ...] = ()
    rent: PlannedRent | None = None
    """What would be rented for it; null: this controller rents nothing."""
    sweep: SweepPlanView | None = None
    """Null: it is no sweep."""


class OffersView(msgspec.Struct, frozen=True, kw_only=True):
    """Where the jobs of a run could go, in the order in which the places are tried."""

    places: tuple[OfferedPlace, ...]
