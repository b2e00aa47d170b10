"""Who carries which rank in a new incarnation.

A ranked job whose allocation survived keeps its rank. The other ranks go to reserved survivors of
the group, by cookie, before any new allocation gets one; the jobs they came from become the
reserved ones. An abandoned rank stays with its job: it is counted, but nobody runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.lifecycle.model import Allocation, Group, Job, Run


def assign(
    run: Run, jobs: Sequence[Job], surviving: Mapping[str, Allocation]
) -> dict[str, int | None]:
    """The ranks by job id; `surviving` allocations by job id."""
    ranks = {job.id: job.rank for job in jobs}
    value = _placement_value(run, jobs, surviving)
    for group in run.groups:
        if group.gang_size is not None:
            _promote(group, jobs, surviving, value, ranks)
    return ranks


def _placement_value(
    run: Run, jobs: Sequence[Job], surviving: Mapping[str, Allocation]
) -> str | None:
    """Under which placement value the gang goes on: that of its first surviving rank, else of its
    first reserved survivor."""
    order = {group.name: at for at, group in enumerate(run.groups)}
    alive = [job for job in jobs if job.id in surviving]
    if not alive:
        return None
    first = min(alive, key=lambda j: (j.rank is None, order.get(j.group, 0), j.rank or 0, j.index))
    return surviving[first.id].placement


def _promote(
    group: Group,
    jobs: Sequence[Job],
    surviving: Mapping[str, Allocation],
    value: str | None,
    ranks: dict[str, int | None],
) -> None:
    own = [job for job in jobs if job.group == group.name]
    lost = [j for j in own if j.rank is not None and j.id not in surviving and not j.abandoned]
    ready = [
        job
        for job in own
        if job.rank is None and job.id in surviving and surviving[job.id].placement == value
    ]
    lost.sort(key=lambda job: job.rank or 0)
    ready.sort(key=lambda job: job.cookie)
    for loser, heir in zip(lost, ready, strict=False):
        ranks[heir.id] = loser.rank
        ranks[loser.id] = None
