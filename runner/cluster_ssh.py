"""SSH between the nodes of a run: the run's key, and a configuration that uses it for them alone.

The key lies in memory; the user's own configuration gets one line that includes ours, so that
`ssh`, `mpirun` and the like need no options. Blocking.
"""

from __future__ import annotations

import os
from pathlib import Path

from runner.identities import Identity
from runner.schemas import ClusterInfo, ClusterKey
from runner.scratch import Scratch

_KEY, _CONFIG = "cluster_key", "ssh_config"


def configuration(cluster: ClusterInfo, key: Path) -> str:
    """The hosts' keys are as young as the run, and no other host is ever reached with this key."""
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
    """For the job's user. Raises OSError when the home folder cannot be written to."""
    private = scratch.secret_file(_KEY, key.private.rstrip("\n") + "\n")
    config = scratch.file(_CONFIG, configuration(cluster, private), 0o600)
    folder = Path(user.home) / ".ssh"
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True)
        os.chown(folder, user.uid, user.gid)
    _add_line(folder / "config", f"Include {config}", user, first=True)
    _add_line(folder / "authorized_keys", key.public.strip(), user, first=False)


def _add_line(path: Path, line: str, user: Identity, *, first: bool) -> None:
    """`Include` counts for all hosts only before the first `Host`."""
    known = path.read_text() if path.exists() else ""
    if line in known.splitlines():
        return
    if not first and known and not known.endswith("\n"):
        known += "\n"
    text = f"{line}\n{known}" if first else f"{known}{line}\n"
    fresh = path.with_name(f".{path.name}.fairlead")
    fresh.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(fresh, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        os.fchown(file.fileno(), user.uid, user.gid)
    fresh.replace(path)
