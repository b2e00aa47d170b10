"""The environment of the job and of SSH sessions into it.

The job gets the image's variables (from /proc/self/environ, because the interpreter changes
`os.environ`), Fairlead's variables (docs/rules.md 5.14 to 5.17), the user's variables, and secrets.
The launcher hides variables that would disturb our interpreter as FAIRLEAD_ORIG_<NAME>; they get
their names back here. Of the variables of this process only the mark is passed on by which the
process engine knows its processes. A session gets the same without secrets; the values are in
memory, never on a disk.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from runner.processes import terminal
from runner.processes.identity import Identity
from runner.processes.scratch import usable_places
from runner.schemas import ClusterInfo, EnvStyle, GangInfo, JobSpec, SubmitRequest

PREFIX = "FAIRLEAD_"
_ALSO_DSTACK = (
    "RUN_ID",
    "RUN_NAME",
    "JOB_ID",
    "REPO_DIR",
    "WORKING_DIR",
    "NODES_IPS",
    "MASTER_NODE_IP",
    "NODE_RANK",
    "NODES_NUM",
    "GPUS_PER_NODE",
    "GPUS_NUM",
    "MPI_HOSTFILE",
)
_ALONE = ClusterInfo(ips=("127.0.0.1",), master_ip="127.0.0.1", rank=0)


class Paths(msgspec.Struct, frozen=True, kw_only=True):
    """Folders and files that were made for this job."""

    repo_dir: str | None = None
    output_dir: str | None = None
    secrets_dir: str | None = None
    hostfile: str | None = None
    venv: str | None = None


def variables(request: SubmitRequest, working_dir: str, paths: Paths) -> dict[str, str]:
    """Return the variables with all prefixes. Variables that do not apply to this job are
    missing."""
    job, cluster = request.job, request.cluster
    folders = {"WORKING_DIR": working_dir, "REPO_DIR": working_dir}
    ours = _about_the_job(job) | folders | _about_paths(paths)
    if cluster is not None and job.job_count > 1:
        ours |= _about_the_cluster(cluster)
    if job.gang is not None:
        ours |= _about_the_gang(job.gang)
    env = {f"{PREFIX}{name}": value for name, value in ours.items()}
    for style in job.env_style:
        env |= _STYLES[style](request, ours)
    return env


def hostfile(cluster: ClusterInfo) -> str:
    """Return the hostfile for MPI: Open MPI and MPICH read the same lines."""
    return "".join(
        f"{ip} slots={max(1, gpus)}\n"
        for ip, gpus in zip(cluster.ips, cluster.gpus_of_each, strict=True)
    )


def _about_the_job(job: JobSpec) -> dict[str, str]:
    return {
        "RUN_ID": job.run_id,
        "RUN_NAME": job.run_name,
        "JOB_ID": job.job_id,
        "ATTEMPT_ID": job.attempt_id,
        "GROUP_NAME": job.group,
        "JOB_COOKIE": str(job.cookie),
        "JOB_INDEX": str(job.index),
        "JOB_COUNT": str(job.job_count),
        "GROUP_JOB_COUNT": str(job.group_job_count),
        **_about_the_place(job),
    }


def _about_the_place(job: JobSpec) -> dict[str, str]:
    descriptor = job.monitoring_descriptor
    return {} if descriptor is None else {"MONITORING_DESCRIPTOR": descriptor}


def _about_paths(paths: Paths) -> dict[str, str]:
    named = {
        "REPO_DIR": paths.repo_dir,
        "OUTPUT_DIR": paths.output_dir,
        "SECRETS_DIR": paths.secrets_dir,
        "MPI_HOSTFILE": paths.hostfile,
    }
    return {name: path for name, path in named.items() if path is not None}


def _about_the_cluster(cluster: ClusterInfo) -> dict[str, str]:
    told = {
        "NODES_IPS": "\n".join(cluster.ips),
        "MASTER_NODE_IP": cluster.master_ip,
        "NODES_NUM": str(len(cluster.ips)),
        "GPUS_PER_NODE": str(cluster.gpus_per_node),
        "GPUS_NUM": str(sum(cluster.gpus_of_each)),
    }
    if cluster.rank is not None:
        told["NODE_RANK"] = str(cluster.rank)
    return told


def _about_the_gang(gang: GangInfo) -> dict[str, str]:
    told = {
        "INCARNATION": gang.incarnation,
        "INCARNATION_NUMBER": str(gang.incarnation_number),
        "GANG_SIZE": str(gang.size),
    }
    if gang.group_size is not None:
        told["GROUP_GANG_SIZE"] = str(gang.group_size)
    if gang.rank is not None:
        told["GANG_RANK"] = str(gang.rank)
    return told


def _dstack(request: SubmitRequest, ours: dict[str, str]) -> dict[str, str]:
    """Return dstack's variables; its scripts expect those of a cluster on a single node too."""
    told = _about_the_cluster(request.cluster or _ALONE) | ours
    return {f"DSTACK_{name}": told[name] for name in _ALSO_DSTACK if name in told}


def _ytsaurus(request: SubmitRequest, ours: dict[str, str]) -> dict[str, str]:
    """Return YTsaurus's variables: its job is an attempt here, and its task is a group."""
    names = {
        "YT_OPERATION_ID": "RUN_ID",
        "YT_OPERATION_INCARNATION": "INCARNATION",
        "YT_GANG_SIZE": "GANG_SIZE",
        "YT_TASK_GANG_SIZE": "GROUP_GANG_SIZE",
        "YT_GANG_RANK": "GANG_RANK",
        "YT_TASK_NAME": "GROUP_NAME",
        "YT_TASK_JOB_COUNT": "GROUP_JOB_COUNT",
        "YT_TASK_JOB_INDEX": "JOB_COOKIE",
        "YT_JOB_ID": "ATTEMPT_ID",
        "YT_JOB_COUNT": "JOB_COUNT",
        "YT_JOB_INDEX": "JOB_INDEX",
        "YT_JOB_COOKIE": "JOB_COOKIE",
    }
    return {theirs: ours[name] for theirs, name in names.items() if name in ours}


def _torch(request: SubmitRequest, ours: dict[str, str]) -> dict[str, str]:
    cluster = request.cluster or _ALONE
    told = {
        "MASTER_ADDR": cluster.master_ip or _ALONE.master_ip,
        "MASTER_PORT": str(cluster.master_port),
        "NNODES": str(max(1, len(cluster.ips))),
        "NPROC_PER_NODE": str(max(1, cluster.gpus_per_node)),
    }
    if cluster.rank is not None:
        told["NODE_RANK"] = str(cluster.rank)
    return told


_STYLES = {
    EnvStyle.DSTACK: _dstack,
    EnvStyle.YTSAURUS: _ytsaurus,
    EnvStyle.TORCH: _torch,
}
__all__ = ["DEFAULT_PATH", "Paths", "for_job", "inherited"]
HIDDEN_PREFIX = "FAIRLEAD_ORIG_"
PROCESS_MARK = "FAIRLEAD_PROCESS_MARK"
_PREFIX = "FAIRLEAD_"
_SET_BY_LAUNCHER = frozenset({"MALLOC_ARENA_MAX"})
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def inherited(environ: bytes | None = None) -> dict[str, str]:
    """Return the image's variables (`environ`: as in /proc/self/environ, the default)."""
    raw = Path("/proc/self/environ").read_bytes() if environ is None else environ
    visible: dict[str, str] = {}
    hidden: dict[str, str] = {}
    for entry in raw.split(b"\0"):
        name, equals, value = os.fsdecode(entry).partition("=")
        if not equals or not name:
            continue
        if name.startswith(HIDDEN_PREFIX):
            hidden[name.removeprefix(HIDDEN_PREFIX)] = value
        elif name == PROCESS_MARK or not (name.startswith(_PREFIX) or name in _SET_BY_LAUNCHER):
            visible[name] = value
    return visible | hidden


def for_job(
    base: Mapping[str, str],
    request: SubmitRequest,
    identity: Identity,
    working_dir: str,
    paths: Paths | None = None,
) -> dict[str, str]:
    """Return the job's environment.

    The user's variables override those of the image and of `env_style` (such as an own
    `MASTER_PORT`), never those named FAIRLEAD_.
    """
    job = request.job
    env = dict(base)
    env.setdefault("PATH", DEFAULT_PATH)
    _name_the_user(env, identity)
    if job.tty:
        env.setdefault("TERM", terminal.TERM)
    told = variables(request, working_dir, paths or Paths())
    env.update(told)
    ours = {name: value for name, value in env.items() if name.startswith(_PREFIX)}
    env.update(job.env)
    env.update(request.secrets)
    env.update(ours)
    return env | _in_venv(paths or Paths(), env["PATH"], env)


def _in_venv(paths: Paths, path: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the job's venv, which is first in the PATH. uv's cache lies beside
    it, where files are linked and not copied."""
    if paths.venv is None:
        return {}
    venv = Path(paths.venv)
    cache = env.get("UV_CACHE_DIR", str(venv.with_name("cache")))
    return {"VIRTUAL_ENV": str(venv), "PATH": f"{venv}/bin:{path}", "UV_CACHE_DIR": cache}


def _name_the_user(env: dict[str, str], identity: Identity) -> None:
    """Set the user's names. A container's HOME is that of its first user and does not apply to
    another one."""
    if identity.uid != os.getuid():
        for name in ("HOME", "USER", "LOGNAME"):
            env.pop(name, None)
    env.setdefault("HOME", identity.home)
    env.setdefault("USER", identity.name)
    env.setdefault("LOGNAME", identity.name)


_NAME = "session-env.json"
_MOST_BYTES = 1 << 20


def for_session(
    request: SubmitRequest, working_dir: str, paths: Paths, path: str | None = None
) -> dict[str, str]:
    """Return a session's variables, which override the image's; `path` is the image's PATH. Names
    of secrets are left out."""
    told = variables(request, working_dir, paths)
    env = told | request.job.env
    env |= {name: value for name, value in told.items() if name.startswith(PREFIX)}
    env |= _in_venv(paths, env.get("PATH") or path or DEFAULT_PATH, env)
    return {name: value for name, value in env.items() if name not in request.secrets}


def in_memory(task: Path, name: str) -> list[Path]:
    """Return possible places in memory for a file about this task, the best first.

    Every process that sees the task's folder computes the same.
    """
    about = task.stat()
    own = f"fairlead-{about.st_dev:x}-{about.st_ino:x}-{name}"
    return [place / own for place in usable_places()]


def write(task: Path, env: dict[str, str]) -> None:
    """Write the environment. Raises OSError where nothing in memory can be written. Blocking."""
    write_private(in_memory(task, _NAME), msgspec.json.encode(env))


def write_private(places: list[Path], data: bytes) -> Path:
    """Write to the first place that accepts it. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    failed: OSError = FileNotFoundError("there is no writable tmpfs")
    for path in places:
        unfinished = path.with_name(f"{path.name}.new")
        try:
            unfinished.unlink(missing_ok=True)
            with os.fdopen(os.open(unfinished, flags, 0o600), "wb") as file:
                file.write(data)
            unfinished.replace(path)
        except OSError as error:
            failed = error
        else:
            return path
    raise failed


def remove(task: Path) -> None:
    """Remove everything in memory about this task. Blocking."""
    with suppress(OSError):
        for anything in in_memory(task, "*"):
            for path in anything.parent.glob(anything.name):
                path.unlink(missing_ok=True)


def read(task: Path) -> dict[str, str]:
    """Return the environment; empty before the job is started, and for a file that is unusable or
    another user's.

    Blocking, but never for long.
    """
    try:
        for path in in_memory(task, _NAME):
            if (raw := _read(path)) is not None:
                env = msgspec.json.decode(raw, type=dict[str, str])
                return {name: value for name, value in env.items() if _can_be_set(name, value)}
    except (OSError, msgspec.DecodeError):
        return {}
    return {}


def _read(path: Path) -> bytes | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            return None
        return file.read(_MOST_BYTES)


def _can_be_set(name: str, value: str) -> bool:
    return bool(name) and "=" not in name and "\0" not in name + value
