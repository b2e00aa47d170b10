"""`monitoring_descriptor`: the name under which a job's place is monitored.

Random per allocation and kept with it; with `monitoring: by-rank` it names the rank instead, so
that a successor on another node goes on in the same series, and follows the rank when it moves.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from controller.lifecycle.gangs.reading import group_of
from controller.lifecycle.model import Allocation, Job, Run


def by_rank(run: Run, job: Job, rank: int | None) -> str | None:
    """`{run_id}/{rank << b | group_index}`, b = bits for the number of groups; None for a job
    without a rank, or whose group does not ask for it."""
    group = group_of(run, job)
    if rank is None or group is None or not group.monitoring_by_rank:
        return None
    bits = (len(run.groups) - 1).bit_length()
    return f"{run.id}/{rank << bits | run.groups.index(group)}"


def with_descriptor(
    run: Run, job: Job, rank: int | None, allocation: Allocation, new_id: Callable[[], str]
) -> Allocation:
    """The allocation as a job with this rank holds it; a random name is made once."""
    named = by_rank(run, job, rank)
    if named is None:
        known = allocation.monitoring_descriptor
        named = known if known is not None and not known.startswith(f"{run.id}/") else new_id()
    return replace(allocation, monitoring_descriptor=named)
