"""A job with its attempts, and the allocations that jobs hold on nodes."""

from __future__ import annotations

import msgspec

from controller.lifecycle.model.attempt import Attempt
from fairlead.model.needs import Resources
from fairlead.model.spec import JobSpec
from fairlead.model.statuses import AllocationState


class Allocation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The resources that a job holds on a node: CPU, memory, GPUs, ports."""

    id: str
    run_id: str
    job_id: str
    node_id: str
    node_name: str | None = None
    """The node's name at that time: the node may be removed before its history is."""
    state: AllocationState
    resources: Resources
    gpus: tuple[str, ...] = ()
    created_at: float
    released_at: float | None = None
    placement: str | None = None
    """The node's value of the fleet's placement attribute when the allocation was made."""
    monitoring_descriptor: str | None = None
    releasing: bool = False
    """No attempt needs it any more and its shim is being told so; until the shim confirms, it is
    occupied."""
    taken_over: bool = False
    """An attempt took it over from an earlier attempt of the same job."""
    victims: tuple[str, ...] = ()
    """While NOMINATED: the allocations of others that must be gone before it can be held. A
    nomination that ended keeps them: they show that it was never held."""
    freed: bool = False
    """A switch of its gang freed it. It is NOMINATED for the run, not for an attempt, in place of
    its one victim, until the gang is whole again or gives up (`gangs.freed`)."""


class Past(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A digest of a job's older attempts of one occurrence, as decisions need it.

    It is derived from their rows when a state is read, and updated as attempts leave the state. It
    is never stored.
    """

    occurrence: int = 0
    failures: int = 0
    preemptions: int = 0
    failed_incarnations: frozenset[int] = frozenset()
    first_submitted_at: float | None = None
    last_end_at: float | None = None
    """When the last of them that had an allocation ended."""
    ran: bool = False
    """One of them was RUNNING once. What a user's retry takes out of all counts is here too."""


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One slot of a run. `attempts` are in the order in which they were made; the last is the
    current one.

    A state has the recent attempts (`lifecycle.runs.compaction`), the store has all.
    """

    id: str
    group: str
    replica: int
    cookie: int
    index: int
    rank: int | None = None
    """Its rank in a gang, or in a service's replica of several nodes; None: it has none."""
    spec: JobSpec
    abandoned: bool = False
    attempts: tuple[Attempt, ...] = ()
    retry_at: float | None = None
    """When its next attempt is made, during a wait (docs/rules.md 3.4)."""
    scaled_down: bool = False
    """`scale`, a rollout or the autoscaler removed this slot; it may come back."""
    deployment: int = 0
    """The version of its service that the replica runs."""
    past: Past = Past()
    counts_from: int = 0
    """The number of the first attempt that limits count: a user retried a set of a sweep."""

    @property
    def has_run(self) -> bool:
        """Whether it was RUNNING once."""
        return self.past.ran or any(one.running_at is not None for one in self.attempts)
