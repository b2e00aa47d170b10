"""The job's environment: the image's own, what Fairlead tells the job, what the user set, secrets.

The image's variables come from /proc/self/environ, since the interpreter changes `os.environ`
(it coerces the locale). The launcher of the runtime hides variables that would disturb our
interpreter under FAIRLEAD_ORIG_<NAME>; they get their names back here. Nothing else of ours is
passed on but the mark by which the shim's process engine knows the processes of a task.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from runner import terminal
from runner.identities import Identity
from runner.schemas import SubmitRequest
from runner.variables import Paths, variables

__all__ = ["DEFAULT_PATH", "Paths", "for_job", "inherited"]

HIDDEN_PREFIX = "FAIRLEAD_ORIG_"
PROCESS_MARK = "FAIRLEAD_PROCESS_MARK"
_PREFIX = "FAIRLEAD_"
_SET_BY_LAUNCHER = frozenset({"MALLOC_ARENA_MAX"})
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def inherited(environ: bytes | None = None) -> dict[str, str]:
    """The image's variables (`environ`: as in /proc/self/environ, the default)."""
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
    """What the user set wins over the image's and over `env_style`'s (a port of one's own for
    `MASTER_PORT`), never over what is named FAIRLEAD_."""
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
    return env


def _name_the_user(env: dict[str, str], identity: Identity) -> None:
    """A container's HOME is its first user's: it says nothing about another user."""
    if identity.uid != os.getuid():
        for name in ("HOME", "USER", "LOGNAME"):
            env.pop(name, None)
    env.setdefault("HOME", identity.home)
    env.setdefault("USER", identity.name)
    env.setdefault("LOGNAME", identity.name)
