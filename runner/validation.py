"""The rules for a submitted job beyond its types; each error names its field. Pure."""

from __future__ import annotations

import re
import signal

from fairlead.wire.errors import Refused
from fairlead.wire.job import ClusterInfo, JobSpec, SubmitRequest


def wanted_blobs(job: JobSpec) -> tuple[str, ...]:
    """Return the blobs in the order in which they are needed, each once."""
    of_repos = (blob for repo in job.repos for blob in (repo.archive, repo.diff))
    all_blobs = (*of_repos, *(files.archive for files in job.files))
    return tuple(dict.fromkeys(blob for blob in all_blobs if blob is not None))


MIN_LOG_QUOTA = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_ADDRESS = re.compile(r"[0-9A-Za-z][0-9A-Za-z.:_-]*", re.ASCII)
_MAX_PORT = 65535


def signal_number(name: str, field: str) -> int:
    """Return the number of a signal (`SIGTERM`, `TERM`). Raises Refused for any other name."""
    full = name if name.startswith("SIG") else f"SIG{name}"
    try:
        return signal.Signals[full]
    except KeyError:
        raise Refused(400, "invalid", f"{name!r} is not the name of a signal", field) from None


def check_submission(request: SubmitRequest) -> None:
    """Raise Refused for an invalid job."""
    job = request.job
    if job.setup and not job.commands:
        raise Refused(400, "invalid", "`setup` needs `commands` after it", "job.setup")
    if job.commands and job.entrypoint is not None:
        raise Refused(
            400, "invalid", "give either `commands` or `entrypoint`, not both", "job.entrypoint"
        )
    if job.entrypoint is not None and not job.entrypoint:
        raise Refused(400, "invalid", "`entrypoint` must name a program", "job.entrypoint")
    if job.max_duration is not None and job.max_duration <= 0:
        raise Refused(400, "invalid", "max_duration must be more than 0 s", "job.max_duration")
    if job.stop_duration < 0:
        raise Refused(400, "invalid", "stop_duration must be 0 or more s", "job.stop_duration")
    if job.log_quota is not None and job.log_quota < MIN_LOG_QUOTA:
        message = f"log_quota must be at least {MIN_LOG_QUOTA} bytes"
        raise Refused(400, "invalid", message, "job.log_quota")
    if job.restart_exit_code is not None and not 1 <= job.restart_exit_code <= 255:
        message = "restart_exit_code must be from 1 to 255"
        raise Refused(400, "invalid", message, "job.restart_exit_code")
    signal_number(job.stop_signal, "job.stop_signal")
    if job.signal is not None:
        signal_number(job.signal.name, "job.signal.name")
    _check_text(request)
    _check_code(job)
    if request.cluster is not None:
        _check_cluster(request.cluster)
    for name in request.secrets:
        if not _ENV_NAME.fullmatch(name):
            raise Refused(400, "invalid", f"{name!r} cannot be a secret's name", "secrets")


def _check_cluster(cluster: ClusterInfo) -> None:
    """Check the addresses: they become lines of files that `ssh` and `mpirun` obey."""
    for field, texts in (("ips", cluster.ips), ("master_ip", (cluster.master_ip or "0",))):
        for text in texts:
            if not _ADDRESS.fullmatch(text):
                message = f"{text!r:.80} is not an address"
                raise Refused(400, "invalid", message, f"cluster.{field}")
    if len(cluster.gpus_of_each) != len(cluster.ips):
        message = "must have one number for each of `ips`"
        raise Refused(400, "invalid", message, "cluster.gpus")
    if cluster.rank is not None and not 0 <= cluster.rank < len(cluster.ips):
        message = "must be the place of one of `ips`, counted from 0"
        raise Refused(400, "invalid", message, "cluster.rank")
    for field, port in (("ssh_port", cluster.ssh_port), ("master_port", cluster.master_port)):
        if not 0 < port <= _MAX_PORT:
            raise Refused(400, "invalid", "must be from 1 to 65535", f"cluster.{field}")


def _check_text(request: SubmitRequest) -> None:
    job = request.job
    texts = {
        "job.setup": job.setup,
        "job.commands": job.commands,
        "job.entrypoint": job.entrypoint or (),
        "job.env": (*job.env, *job.env.values()),
        "job.working_dir": (job.working_dir or "",),
        "job.shell": (job.shell or "",),
        "job.user": (job.user or "",),
        "secrets": request.secrets.values(),
    }
    for field, values in texts.items():
        if any("\0" in value for value in values):
            raise Refused(400, "invalid", "a NUL character is not possible here", field)
    if any(not name or "=" in name for name in job.env):
        raise Refused(400, "invalid", "the name of a variable is empty or contains `=`", "job.env")


def _check_code(job: JobSpec) -> None:
    for blob in wanted_blobs(job):
        if not _DIGEST.fullmatch(blob):
            raise Refused(400, "invalid", f"{blob!r} is not a sha256", "job.repos")
    for number, repo in enumerate(job.repos):
        if (repo.url is None) == (repo.archive is None):
            field = f"job.repos[{number}]"
            raise Refused(400, "invalid", "give either `url` or `archive`", field)
        if repo.diff is not None and repo.url is None:
            message = "changes what was fetched from `url`; an archive is used as it is"
            raise Refused(400, "invalid", message, f"job.repos[{number}].diff")
        for name in ("url", "branch", "commit"):
            if (getattr(repo, name) or "").startswith("-"):
                message = "begins with a hyphen, which git takes for an option"
                raise Refused(400, "invalid", message, f"job.repos[{number}].{name}")
    paths = (*(repo.path for repo in job.repos), *(files.path for files in job.files))
    for path in paths:
        if "\0" in path:
            raise Refused(400, "invalid", "a NUL character is not possible here", "job.repos")
