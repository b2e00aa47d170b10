"""A job as its runner gets it: what it executes, its place in its run, what it needs to know of
other nodes, and what of its code changes before it starts again in its container.

The runner owns these types, as it owns those of its answers (`fairlead.wire.runner`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec


class IfFolderExists(StrEnum):
    """The reaction to a repository's folder that exists and is not empty."""

    ERROR = "error"
    SKIP = "skip"


class Repo(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that exists before the commands run.

    It is either `archive`, unpacked, or `url`, fetched with git (at `commit`, else the tip of
    `branch`, else the remote's HEAD) and changed by `diff`. `path` is absolute or relative to the
    working folder. `archive` and `diff` (as from `git diff --binary --full-index`) are blobs, named
    by their sha256.
    """

    path: str
    url: str | None = None
    branch: str | None = None
    commit: str | None = None
    diff: str | None = None
    archive: str | None = None
    if_exists: IfFolderExists = IfFolderExists.ERROR


class RepoCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials of a repository: `token` for https, `private_key` (OpenSSH, PEM) for ssh.

    `known_hosts` are lines for that host; without them, the host's first key is accepted.
    """

    token: str | None = None
    username: str = "x-access-token"
    private_key: str | None = None
    known_hosts: str | None = None

    def __repr__(self) -> str:
        return "RepoCredentials(***)"


class BucketMode(StrEnum):
    """What a job's folder of a bucket is for."""

    READ = "read"
    """The objects are there when the job starts."""
    WRITE_BACK = "write-back"
    """Also, what changed is uploaded when the job has ended."""


class BucketFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of `url` (s3://BUCKET/PREFIX) as files in the folder `path`. `endpoint` None: AWS
    in the region of the job's environment, which has the keys too."""

    url: str
    path: str
    mode: BucketMode = BucketMode.READ
    endpoint: str | None = None


class EndSignal(msgspec.Struct, frozen=True, kw_only=True):
    """The signal that a job gets `before` (seconds) a foreseeable end of it."""

    name: str
    before: float


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """`archive` (a blob), unpacked into the folder `path`; existing files are replaced.

    `read_only`: nobody but root may write to its files, as far as their modes say.
    """

    path: str
    archive: str
    read_only: bool = False


class EnvStyle(StrEnum):
    """Additional names for the job's variables, as another system has them."""

    DSTACK = "dstack"
    YTSAURUS = "ytsaurus"
    TORCH = "torch"
    SLURM = "slurm"
    SKYPILOT = "skypilot"


class GangInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The job's gang (docs/rules.md 5).

    `size` counts the ranks of all gang groups, `group_size` those of this group; None: this group
    is no gang but restarts with one and has its own ranks. `rank` None: a reserved job.
    """

    incarnation: str
    incarnation_number: int
    size: int
    group_size: int | None = None
    rank: int | None = None


class ClusterKey(msgspec.Struct, frozen=True, kw_only=True):
    """The run's own SSH key, the same on all its nodes, in OpenSSH formats."""

    private: str
    public: str

    def __repr__(self) -> str:
        return "ClusterKey(***)"


MAX_ARGUMENT = 128 * 1024 - 1
"""Bytes of one argument or of one `NAME=VALUE`: Linux's MAX_ARG_STRLEN without the final NUL."""


def script(commands: Iterable[str]) -> str:
    """Return one script in which each command must succeed before the next runs.

    `cd`, `export` and functions carry over. The last command has no check after it, so that a shell
    can become it.
    """
    return _CHECK.join(commands)


def script_after(setup: Iterable[str], mark: str, commands: Iterable[str]) -> str:
    """Return the same script with `setup` before the commands; when that has succeeded, the shell
    writes to the file `mark`."""
    marks = f"printf done 2>/dev/null >|{shlex.quote(mark)} || :"
    return script((*setup, marks, *commands))


_CHECK = "\n\ncase $? in 0) ;; *) exit $? ;; esac\n"


class JobProgram(msgspec.Struct, frozen=True, kw_only=True):
    """What a job executes: the part of its specification that goes to its runner as it is.

    The controller's `JobSpec` (`fairlead.model.spec`) has it too, so a field that reaches the
    runner is written here alone. `entrypoint` (an argv, no shell) and `commands` (joined, run by
    `shell` after `setup`) exclude each other; without either, the image's own entrypoint and cmd
    run. `env` overrides the image's. `user` is a name or uid, optionally with `:group`; None: the
    image's user.
    """

    python: str | None = None
    """The version of Python that the job's venv gets; None: it gets no venv."""
    setup: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] | None = None
    shell: str | None = None
    env: dict[str, str] = {}
    working_dir: str | None = None
    user: str | None = None
    stop_signal: str = "SIGTERM"
    signal: EndSignal | None = None
    """None: it gets no signal before its stop signal."""
    files: tuple[Files, ...] = ()
    tty: bool = False
    """Whether the job's output is a terminal."""
    env_style: tuple[EnvStyle, ...] = ()
    outputs: tuple[str, ...] = ()
    """The files to copy to the output folder when the job has ended: paths and patterns,
    absolute or relative to the working folder."""
    buckets: tuple[BucketFolder, ...] = ()
    core_dumps: int = 0
    """How many core dumps of its processes are copied there."""
    outputs_limit: int | None = None
    """The most bytes of that."""
    restart_exit_code: int | None = None
    """The exit code with which an interrupted job asks to be started again."""
    log_quota: int | None = None
    """Bytes of log files to keep, headers included; None: the runner's own limit (1 GiB)."""
    fail_on_log_quota: bool = False
    """End the job with `log_quota_exceeded` when its oldest output would have to be removed."""


class JobSpec(JobProgram, frozen=True, kw_only=True):
    """The job to run, with its names and its place in the run."""

    run_id: str
    run_name: str
    job_id: str
    attempt_id: str
    group: str
    cookie: int
    index: int
    job_count: int
    group_job_count: int
    max_duration: float | None = None
    """Seconds. The controller ends the job then; if it does not, the runner does it later."""
    stop_duration: float = 300.0
    """Seconds between stop signal and SIGKILL when the runner itself ends the job."""
    repos: tuple[Repo, ...] = ()
    gang: GangInfo | None = None
    monitoring_descriptor: str | None = None
    """The name under which the job's allocation is monitored."""
    parameters: dict[str, str | int | float | bool] | None = None
    """The job's parameter set, which becomes a file in its output folder; None: it is of no
    sweep."""
    parameter_set: int | None = None
    """The number of that set."""
    gpus: int = 0
    """How many GPUs the job has; 0 also from a controller of an older version."""
    reuse_container: bool = False
    """Other jobs may run in its container after it (docs/rules.md 11.14)."""
    restarts: int = 0
    """How many attempts of this job there were before; 0 also from an older controller."""
    keeps_for: float | None = None
    """Seconds for which its container waits, after its commands have ended, to start them again
    (docs/rules.md 2.15); None: it does not."""

    @property
    def leaves_something(self) -> bool:
        """Whether something is copied when the job has ended."""
        writes_back = any(one.mode is BucketMode.WRITE_BACK for one in self.buckets)
        return bool(self.outputs or self.core_dumps or writes_back)


class ClusterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The other nodes of a multi-node job.

    `ips[rank]` is that node's address, `gpus[rank]` the number of its job's GPUs (missing: as many
    as here, `gpus_per_node`). `rank` None: a reserved job, whose own node is not among them. At
    `ssh_port` the jobs of this run reach each other by SSH; `master_port` is for programs that meet
    at rank 0 (`env_style: torch`).
    """

    ips: tuple[str, ...] = ()
    master_ip: str = ""
    rank: int | None = None
    gpus_per_node: int = 0
    ssh_port: int = 22
    master_port: int = 29500
    gpus: tuple[int, ...] = ()

    @property
    def gpus_of_each(self) -> tuple[int, ...]:
        """Return one number for each of `ips`."""
        return self.gpus or (self.gpus_per_node,) * len(self.ips)


_KEPT_FROM_FIRST = (
    "job_count",
    "group_job_count",
    "monitoring_descriptor",
    "stop_duration",
    "gpus",
    "restarts",
)


class SubmitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/submit`; the same body again answers 200, another one 409.

    What the first body says about the cluster, the number of jobs and of GPUs, the monitoring and
    the grace stays: one more address of a node, a scaled group or a newer controller make no other
    job.
    """

    job: JobSpec
    cluster: ClusterInfo | None = None
    secrets: dict[str, str] = {}
    repo_credentials: dict[str, RepoCredentials] = {}
    """The credentials by the `path` of the repository."""
    cluster_key: ClusterKey | None = None
    masked: tuple[str, ...] = ()
    """More values that the job's log must not show: parts of `secrets`."""

    def is_the_same_job(self, other: SubmitRequest) -> bool:
        first = {name: getattr(other.job, name) for name in _KEPT_FROM_FIRST}
        job = msgspec.structs.replace(self.job, **first)
        return msgspec.structs.replace(self, job=job, cluster=other.cluster) == other

    def __repr__(self) -> str:
        return f"SubmitRequest(job={self.job.attempt_id!r}, secrets={sorted(self.secrets)})"


MIN_SECRET = 4
"""Bytes of the shortest secret that logs hide; a shorter one would match everywhere."""


class CodeChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of two versions. What an unchanged folder holds is neither sent nor
    touched."""

    repos: tuple[tuple[Repo, Repo], ...] = ()
    """Repositories before and after."""
    removed: tuple[Files, ...] = ()
    """All that was unpacked into folders of which something changes, in its order."""
    files: tuple[Files, ...] = ()
    """All that is unpacked there now."""

    @property
    def blobs(self) -> tuple[str, ...]:
        """What the runner needs for it, each once. A repository's earlier changes are among it:
        they are taken back first."""
        of_repos = (one for pair in self.repos for one in (pair[0].diff, *_brought(pair[1])))
        named = (*of_repos, *(one.archive for one in self.files))
        return tuple(dict.fromkeys(one for one in named if one is not None))


Code = tuple[Sequence[Repo], Sequence[Files]]
"""The repositories and the files of a job."""


def code_changes(before: Code, after: Code) -> CodeChanges:
    """Return what changes. `why_not_in_place` has found nothing."""
    pairs = zip(before[0], after[0], strict=True)
    repos = tuple((old, new) for old, new in pairs if old != new)
    # Files may lie in a repository's folder, over its own.
    all_paths = frozenset(one.path for one in (*before[1], *after[1]))
    paths = all_paths if repos else _changed_paths(before[1], after[1])
    return CodeChanges(
        repos=repos,
        removed=tuple(one for one in before[1] if one.path in paths),
        files=tuple(one for one in after[1] if one.path in paths),
    )


def why_not_in_place(before: Code, after: Code) -> str | None:
    """Return why the code of a job cannot change in its container, as a sentence; None: it can."""
    if [one.path for one in before[0]] != [one.path for one in after[0]]:
        return "its repositories are in other folders"
    # A folder that is made later could be made through a link that the job has put there.
    if {one.path for one in before[1]} != {one.path for one in after[1]}:
        return "its files are in other folders"
    for old, new in zip(before[0], after[0], strict=True):
        if _place(old) != _place(new):
            return f"another commit of the repository in {new.path!r} must be fetched"
    return None


def _place(repo: Repo) -> tuple[object, ...]:
    return (repo.url, repo.branch, repo.commit, repo.archive is None, repo.if_exists)


def _brought(repo: Repo) -> tuple[str | None, str | None]:
    return repo.archive, repo.diff


def _changed_paths(before: Iterable[Files], after: Iterable[Files]) -> frozenset[str]:
    # Two archives may hold the same name, and the later one wins: so the folder is one thing.
    old, new = _by_path(before), _by_path(after)
    return frozenset(path for path in {*old, *new} if old.get(path) != new.get(path))


def _by_path(files: Iterable[Files]) -> dict[str, list[Files]]:
    found: dict[str, list[Files]] = {}
    for one in files:
        found.setdefault(one.path, []).append(one)
    return found
