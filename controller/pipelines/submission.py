"""What a runner is told about its job, from what the core holds. Pure functions."""

from __future__ import annotations

from controller.lifecycle.model import JobSpec
from controller.lifecycle.model import Repo as PlannedRepo
from controller.pipelines.convert import View
from runner.schemas import (
    ClusterInfo,
    ClusterKey,
    EnvStyle,
    Files,
    GangInfo,
    IfExists,
    Repo,
    RepoCredentials,
    SubmitRequest,
)
from runner.schemas import JobSpec as RunnerJob


def submit_request(
    view: View, cluster: ClusterInfo | None = None, key: ClusterKey | None = None
) -> SubmitRequest:
    """`cluster` and `key`: of a job that is told of other nodes."""
    spec = view.job.spec
    private = [repo for repo in spec.repos if _is_private(repo)]
    return SubmitRequest(
        job=_job(view, spec),
        secrets=spec.secrets,
        repo_credentials={repo.path: _credentials(repo) for repo in private},
        cluster=cluster,
        cluster_key=key,
    )


def _job(view: View, spec: JobSpec) -> RunnerJob:
    run, job, place = view.state.run, view.job, view.allocation
    slots = [other for other in view.state.jobs if not other.scaled_down]
    return RunnerJob(
        run_id=run.id,
        run_name=run.name,
        job_id=job.id,
        attempt_id=view.attempt.id,
        group=job.group,
        cookie=job.cookie,
        index=job.index,
        job_count=len(slots),
        group_job_count=sum(other.group == job.group for other in slots),
        commands=spec.commands,
        entrypoint=spec.entrypoint,
        shell=spec.shell,
        env=spec.env,
        working_dir=spec.working_dir,
        user=spec.user,
        max_duration=run.policy.max_duration,
        stop_signal=spec.stop_signal,
        repos=tuple(_repo(repo) for repo in spec.repos),
        files=tuple(Files(path=one.path, archive=one.archive) for one in spec.files),
        tty=spec.tty,
        restart_exit_code=spec.restart_exit_code,
        log_quota=spec.log_quota,
        fail_on_log_quota=spec.fail_on_log_quota,
        env_style=tuple(EnvStyle(style) for style in spec.env_style),
        gang=_gang(view),
        monitoring_descriptor=None if place is None else place.monitoring_descriptor,
    )


def _gang(view: View) -> GangInfo | None:
    """None for a job that lives in no incarnations. The ranks of a plain group beside a gang are
    its own."""
    incarnation = view.attempt.incarnation
    if incarnation is None:
        return None
    sizes = {group.name: group.gang_size for group in view.state.run.groups}
    return GangInfo(
        incarnation=incarnation.id,
        incarnation_number=incarnation.number,
        size=sum(size or 0 for size in sizes.values()),
        group_size=sizes.get(view.job.group),
        rank=view.attempt.rank,
    )


def _repo(repo: PlannedRepo) -> Repo:
    return Repo(
        path=repo.path,
        url=repo.url,
        branch=repo.branch,
        commit=repo.commit,
        diff=repo.diff,
        archive=repo.archive,
        if_exists=IfExists(repo.if_exists),
    )


def _is_private(repo: PlannedRepo) -> bool:
    return any((repo.token, repo.private_key, repo.known_hosts))


def _credentials(repo: PlannedRepo) -> RepoCredentials:
    return RepoCredentials(
        token=repo.token, private_key=repo.private_key, known_hosts=repo.known_hosts
    )
