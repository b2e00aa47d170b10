"""How a user calls a job. Apart from `progress`, which knows all types of a run's document."""

from __future__ import annotations

from typing import Protocol


class OfGroup(Protocol):
    """A job, as a document has it."""

    @property
    def group(self) -> str: ...

    @property
    def cookie(self) -> int: ...


def job_name(job: OfGroup) -> str:
    return f"{job.group}/{job.cookie}"
