"""SSH between the nodes of a run: the run's key, and a configuration that uses it for these nodes
alone.

The key is in memory. The user's own configuration gets one line that includes this one, so `ssh`,
`mpirun` and similar programs need no options. Blocking.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairlead.wire.job import ClusterInfo, ClusterKey
from runner.processes.identity import Identity
from runner.processes.scratch import Scratch

_KEY, _CONFIG, _LOCK = "cluster_key", "ssh_config", ".fairlead.lock"
_TRIES, _PAUSE = 50, 0.1
"""The number of checks whether the other members are ready, and the seconds between two."""


def configuration(cluster: ClusterInfo, key: Path) -> str:
    """Return the configuration. The hosts' keys are as new as the run, and no other host is ever
    reached with this key."""
    hosts = " ".join(dict.fromkeys((*cluster.ips, cluster.master_ip)))
    options = (
        f"Port {cluster.ssh_port}",
        f"IdentityFile {key}",
        "IdentitiesOnly yes",
        "StrictHostKeyChecking no",
        "UserKnownHostsFile /dev/null",
        "LogLevel ERROR",
    )
    return "".join(f"{line}\n" for line in (f"Host {hosts}", *(f"    {o}" for o in options)))


def set_up(cluster: ClusterInfo, key: ClusterKey, scratch: Scratch, user: Identity) -> None:
    """Set SSH up for the job's user. Raises OSError when the home folder cannot be written to."""
    private = scratch.secret_file(_KEY, key.private.rstrip("\n") + "\n")
    config = scratch.file(_CONFIG, configuration(cluster, private), 0o600)
    folder = Path(user.home) / ".ssh"
    with suppress(FileExistsError):  # also by another job, which makes it at the same time
        folder.mkdir(mode=0o700, parents=True)
        os.chown(folder, user.uid, user.gid)
    with _alone_in(folder, user):
        _add_line(folder / "config", _include(config), user, first=True)
        _add_line(folder / "authorized_keys", key.public.strip(), user, first=False)


def take_back(scratch: Scratch, user: Identity) -> None:
    """Remove the line that includes what ends with the job; the home folder may stay longer. Raises
    OSError.

    The public key stays: other jobs of the run may have the same home.
    """
    folder = Path(user.home) / ".ssh"
    config, ours = folder / "config", _include(scratch.folder / _CONFIG)
    with _alone_in(folder, user):
        lines = _read(config).splitlines(keepends=True)
        left = [line for line in lines if line.rstrip("\n") != ours]
        if left != lines:
            _replace(config, "".join(left), user)


def _include(config: Path) -> str:
    return f"Include {config}"


@contextmanager
def _alone_in(folder: Path, user: Identity) -> Iterator[None]:
    """Lock the folder. All jobs of a run may share one home on a volume and begin at the same time.

    If locks do not work, or one is never released, the job begins anyway.
    """
    # The folder is the job's: a link there must not give another file to its user.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(folder / _LOCK, flags, 0o600)
    try:
        os.fchown(lock, user.uid, user.gid)
        for _ in range(_TRIES):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_PAUSE)
            except OSError:
                # A network file system may know no locks (fcntl(2): ENOLCK).
                break
            else:
                break
        yield
    finally:
        os.close(lock)


def _add_line(path: Path, line: str, user: Identity, *, first: bool) -> None:
    """Add a line. `Include` applies to all hosts only before the first `Host`."""
    known = _read(path)
    if line in known.splitlines():
        return
    if not first and known and not known.endswith("\n"):
        known += "\n"
    _replace(path, f"{line}\n{known}" if first else f"{known}{line}\n", user)


def _read(path: Path) -> str:
    """Return the file's content, whatever bytes it has."""
    return path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else ""


def _replace(path: Path, text: str, user: Identity) -> None:
    fresh = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # ssh refuses a configuration that others may write to (ssh(1), FILES).
    descriptor = os.open(fresh, flags, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(text)
        os.fchown(file.fileno(), user.uid, user.gid)
    fresh.replace(path)
