"""What only the start of a job needs, and may be secret: a run that has ended keeps none of it."""

from __future__ import annotations

from msgspec.structs import replace

from controller.lifecycle.draft import Draft
from controller.lifecycle.model import JobSpec


def forget(draft: Draft) -> None:
    """No job of the run will be started again."""
    without: dict[int, JobSpec] = {}
    for at, job in enumerate(draft.jobs):
        spec = job.spec
        if id(spec) not in without:
            without[id(spec)] = _without_values(spec)
        if without[id(spec)] is not spec:
            draft.jobs[at] = replace(job, spec=without[id(spec)])


def _without_values(spec: JobSpec) -> JobSpec:
    """The very object given when it has none."""
    repos = tuple(replace(repo, token=None, private_key=None) for repo in spec.repos)
    bare = replace(spec, env={}, secrets={}, registry_auth=None, repos=repos)
    return spec if bare == spec else bare
