"""The environment of the job.

The job gets the image's variables (from /proc/self/environ, because the interpreter changes
`os.environ`), Fairlead's (`variables`), the user's, and secrets. The launcher hides variables that
would disturb our interpreter as FAIRLEAD_ORIG_<NAME>; they get their names back here. Of the
variables of this process only the mark is passed on by which the process engine knows its
processes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fairlead.wire.job import SubmitRequest
from runner.processes import terminal
from runner.processes.identity import Identity
from runner.processes.variables import PREFIX, Paths, variables

HIDDEN_PREFIX = "FAIRLEAD_ORIG_"
PROCESS_MARK = "FAIRLEAD_PROCESS_MARK"
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
        elif name == PROCESS_MARK or not (name.startswith(PREFIX) or name in _SET_BY_LAUNCHER):
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
    env.update(variables(request, working_dir, paths or Paths()))
    ours = {name: value for name, value in env.items() if name.startswith(PREFIX)}
    env.update(job.env)
    env.update(request.secrets)
    env.update(ours)
    return env | in_venv(paths or Paths(), env["PATH"], env)


def in_venv(paths: Paths, path: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the job's venv, which is first in the PATH. uv's cache lies next to
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
