"""Which blobs a job's code consists of. Pure."""

from __future__ import annotations

from runner.schemas import JobSpec


def wanted_blobs(job: JobSpec) -> tuple[str, ...]:
    """In the order in which they are needed, each once."""
    of_repos = (blob for repo in job.repos for blob in (repo.archive, repo.diff))
    all_blobs = (*of_repos, *(files.archive for files in job.files))
    return tuple(dict.fromkeys(blob for blob in all_blobs if blob is not None))
