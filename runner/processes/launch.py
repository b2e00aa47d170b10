"""Turns a job's spec into something that can be executed: argv, environment, folder, identity.

Every error of the spec in this image is found here, and reported in words for the user, before a
process exists. It reads the image's files and makes the working folder, so it blocks: call it in a
thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from common.files.task_folder import IMAGE_CONFIG_NAME, ImageConfig
from fairlead.wire.decoders import decoder_of
from fairlead.wire.job import JobSpec, SubmitRequest, script, script_after
from runner.errors import CannotStart
from runner.processes import environment
from runner.processes.identity import Identity, current_identity, resolve
from runner.processes.variables import Paths

_SHELLS = ("/bin/bash", "/bin/sh")
REPO_WORKING_DIR = "/workflow"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A program to execute. `argv[0]` is a path. `identity` None: stay the runner's user."""

    argv: tuple[str, ...]
    env: dict[str, str]
    working_dir: str
    identity: Identity | None = None
    tty: bool = False
    core_limit: int | None = None
    """Bytes of a core dump, -1 for any; None: the runner's own limit holds."""
    setup_mark: str | None = None
    """The file that is not empty when the job's `setup` has succeeded; None: it has none."""

    # Arguments and environment may hold secrets, and tracebacks show this.
    def __repr__(self) -> str:
        return f"Launch(argv[0]={self.argv[0]!r}, working_dir={self.working_dir!r})"


def read_image_config(task: Path) -> ImageConfig:
    """Return the image's configuration. Raises CannotStart when the file exists but is invalid."""
    try:
        raw = (task / IMAGE_CONFIG_NAME).read_bytes()
        return decoder_of(ImageConfig).decode(raw) if raw.strip() else ImageConfig()
    except FileNotFoundError:
        return ImageConfig()
    except (OSError, msgspec.DecodeError) as error:
        raise CannotStart(f"the image's configuration cannot be read: {error}") from error


class LaunchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The job's folder and user. `identity` None: the runner's user (`effective`)."""

    working_dir: str
    identity: Identity | None
    effective: Identity


def settle(request: SubmitRequest, image: ImageConfig, root: Path = Path("/")) -> LaunchSettings:
    """Make the working folder and return folder and user. Raises CannotStart with a sentence for
    the user."""
    job = request.job
    identity = _identity(job.user or image.user, root)
    working_dir = _working_dir(job, image)
    make_folder(working_dir, identity, "working_dir")
    effective = identity or current_identity(root)
    return LaunchSettings(working_dir=working_dir, identity=identity, effective=effective)


def prepare(
    request: SubmitRequest,
    image: ImageConfig,
    *,
    inherited: Mapping[str, str],
    shells: tuple[str, ...] = _SHELLS,
    root: Path = Path("/"),
    settings: LaunchSettings | None = None,
    paths: Paths | None = None,
    setup_mark: str | None = None,
) -> Launch:
    """Return what to execute. `settings`: the result of `settle`, if it was called before. Raises
    CannotStart with a sentence for the user."""
    job = request.job
    settings = settings or settle(request, image, root)
    env = environment.for_job(inherited, request, settings.effective, settings.working_dir, paths)
    argv = _argv(job, image, env, settings.working_dir, shells, setup_mark)
    return Launch(
        argv=argv,
        env=env,
        working_dir=settings.working_dir,
        identity=settings.identity,
        tty=job.tty,
        core_limit=_core_limit(job),
        setup_mark=setup_mark,
    )


def _core_limit(job: JobSpec) -> int | None:
    if not job.core_dumps:
        return None
    return -1 if job.outputs_limit is None else job.outputs_limit


def _working_dir(job: JobSpec, image: ImageConfig) -> str:
    """Return the working folder. A repository cannot be in the root folder, so a job with one gets
    another folder."""
    given = job.working_dir or image.working_dir or os.getcwd()
    return REPO_WORKING_DIR if job.repos and given == "/" and not job.working_dir else given


def _identity(user: str, root: Path) -> Identity | None:
    if not user:
        return None
    identity = resolve(user, root)
    if identity.uid == os.getuid() and identity.gid == os.getgid():
        return None
    if os.getuid() != 0:
        raise CannotStart(
            f"the job cannot run as user {user!r}: the runner itself runs as uid {os.getuid()}"
            " and not as root"
        )
    return identity


def place_of(path: str, working_dir: str) -> str:
    return os.path.normpath(os.path.join(working_dir, path))


def make_folder(name: str, identity: Identity | None, field: str) -> None:
    """Make missing folders of the path, for the job's user; CannotStart names `field`."""
    path = Path(name)
    if not path.is_absolute():
        raise CannotStart(f"{field} {name!r} must be an absolute path")
    missing = [p for p in (path, *path.parents) if not p.exists()]
    try:
        for folder in reversed(missing):
            # On a volume, another job may make it at the same time.
            folder.mkdir(mode=0o755, exist_ok=True)
            # The umask has cut the mode of mkdir(2).
            folder.chmod(0o755)
            if identity is not None:
                os.chown(folder, identity.uid, identity.gid)
    except OSError as error:
        raise CannotStart(f"{field} {name!r} cannot be made: {error.strerror}") from error
    if not path.is_dir():
        raise CannotStart(f"{field} {name!r} is not a folder")


def _argv(
    job: JobSpec,
    image: ImageConfig,
    env: Mapping[str, str],
    cwd: str,
    shells: tuple[str, ...],
    setup_mark: str | None,
) -> tuple[str, ...]:
    if job.commands:
        text = script(job.commands)
        if setup_mark is not None:
            text = script_after(job.setup, setup_mark, job.commands)
        return (_shell(job.shell, env, cwd, shells), "-c", text)
    argv = job.entrypoint or (*image.entrypoint, *image.cmd)
    if not argv:
        raise CannotStart(
            "there is nothing to run: the image has no entrypoint or cmd; give `commands` or"
            " `entrypoint`"
        )
    path = find(argv[0], env, cwd)
    if path is None:
        raise CannotStart(f"{argv[0]!r} is not an executable in the image (PATH={env['PATH']})")
    return (path, *argv[1:])


def _shell(asked: str | None, env: Mapping[str, str], cwd: str, shells: tuple[str, ...]) -> str:
    if asked:
        path = find(asked, env, cwd)
        if path is None:
            raise CannotStart(f"shell {asked!r} is not in the image; choose another `shell`")
        return path
    for candidate in shells:
        if _is_executable(candidate):
            return candidate
    raise CannotStart(
        "the image has no shell to run `commands` (looked for " + ", ".join(shells) + ");"
        " use `entrypoint: [program, argument, ...]` instead"
    )


def find(program: str, env: Mapping[str, str], cwd: str) -> str | None:
    if "/" in program:
        path = os.path.join(cwd, program)
        return path if _is_executable(path) else None
    # An empty or relative entry is meant from the working folder (bash(1), PATH).
    folders = env.get("PATH", environment.DEFAULT_PATH).split(":")
    paths = (os.path.join(cwd, folder, program) for folder in folders)
    return next((path for path in paths if _is_executable(path)), None)


def _is_executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
