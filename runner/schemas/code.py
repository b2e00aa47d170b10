"""What a job needs beside its image: repositories, files, and the keys to them."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class IfExists(StrEnum):
    """What to do when a repository's folder exists and is not empty."""

    ERROR = "error"
    SKIP = "skip"


class Repo(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that is there before the commands run: either `archive` unpacked, or `url` fetched
    with git (at `commit`, else the tip of `branch`, else the remote's HEAD) and changed by `diff`.

    `path` is absolute or relative to the working folder. `archive` and `diff` (as of
    `git diff --binary --full-index`) are blobs, named by their sha256.
    """

    path: str
    url: str | None = None
    branch: str | None = None
    commit: str | None = None
    diff: str | None = None
    archive: str | None = None
    if_exists: IfExists = IfExists.ERROR


class RepoCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """`token` for https, `private_key` (OpenSSH, PEM) for ssh; `known_hosts` are lines for that
    host: without them the first key that the host shows is taken."""

    token: str | None = None
    username: str = "x-access-token"
    private_key: str | None = None
    known_hosts: str | None = None

    def __repr__(self) -> str:
        return "RepoCredentials(***)"


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """`archive` (a blob) unpacked into the folder `path`; files that are there already give way."""

    path: str
    archive: str


class EnvStyle(StrEnum):
    """Whose names the job's variables have beside ours."""

    DSTACK = "dstack"
    YTSAURUS = "ytsaurus"
    TORCH = "torch"


class GangInfo(msgspec.Struct, frozen=True, kw_only=True):
    """LIFECYCLE.md section 5. `size` counts the ranks of all gang groups, `group_size` those of
    this one; None: its group is no gang but restarts with one, and has ranks of its own. `rank`
    None: a reserved job."""

    incarnation: str
    incarnation_number: int
    size: int
    group_size: int | None = None
    rank: int | None = None


class ClusterKey(msgspec.Struct, frozen=True, kw_only=True):
    """The run's own SSH key, the same on all its nodes; OpenSSH formats."""

    private: str
    public: str

    def __repr__(self) -> str:
        return "ClusterKey(***)"
