"""A venv with the version of Python that a job asks for, made by uv before the job's commands.

An interpreter of the image comes first; otherwise one that the node keeps for its jobs. The venv
and uv's cache lie in the task's folder: no other job can reach or fill them, a read-only image does
not matter, and they end with the task.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from common.files.task_folder import PYTHONS_NAME, Pythons
from fairlead.wire.decoders import decoder_of
from runner.code.helper import Helpers, own_program
from runner.errors import CannotStart
from runner.processes.identity import Identity

FOLDER_NAME = "python"
VENV_NAME = "venv"
_PIP = '#!/bin/sh\nexec "${0%/*}/python" -m pip "$@"\n'
_PIP_OF_UV = '#!/bin/sh\nexec "${0%/*}/uv" pip "$@"\n'
"""For a node without the containers' runtime, which has pip next to uv."""
_LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")


async def make_venv(
    task: Path, version: str, helpers: Helpers, owner: Identity | None, root: Path = Path("/")
) -> str:
    """Make the venv and return its folder. Raises CannotStart with a sentence for the user."""
    uv, offered = _uv(), _offered(task)
    if uv is None:
        raise CannotStart(f"python {version}: this node has no uv: its operator must renew it")
    venv = _folder(task, owner) / VENV_NAME
    made = await helpers.run(_command(uv, version, venv), cwd="/", env=_env(helpers, offered, venv))
    if made.code != 0:
        raise CannotStart(_why(version, offered, made.output, root))
    added = await helpers.run((*own_program("runner.job.python"), str(venv), str(uv)), cwd="/")
    if added.code != 0:
        raise CannotStart(_failed(version, added.output))
    return str(venv)


def main() -> int:
    """Add uv and pip to the venv, as the job's user: the image's own interpreter made it, and may
    have put links in the place of its folders."""
    venv, uv = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        (venv / "bin" / "uv").symlink_to(uv)
        _add_pip(venv, uv.with_name("pip"))
    except OSError as error:
        print(f"{error.filename}: {error.strerror}")  # noqa: T201
        return 1
    return 0


def _add_pip(venv: Path, pip: Path) -> None:
    """Let the venv find the runtime's pip, if there is one. `pip install -U pip` replaces it."""
    if pip.is_dir():
        for folder in venv.glob("lib/python3*/site-packages"):
            (folder / "fairlead-pip.pth").write_text(f"{pip}\n")
    (venv / "bin" / "pip").write_text(_PIP if pip.is_dir() else _PIP_OF_UV)
    (venv / "bin" / "pip").chmod(0o755)


def _command(uv: Path, version: str, venv: Path) -> Sequence[str]:
    options = ("--no-project", "--no-config", "--no-python-downloads", "--quiet")
    return (str(uv), "venv", *options, "--python", version, str(venv))


def _env(helpers: Helpers, offered: Pythons, venv: Path) -> dict[str, str]:
    env = {name: one for name, one in helpers.env.items() if not name.startswith("UV_")}
    env.pop("VIRTUAL_ENV", None)
    env |= {"UV_PYTHON_PREFERENCE": "system", "UV_CACHE_DIR": str(venv.with_name("cache"))}
    if offered.folder:
        env["UV_PYTHON_INSTALL_DIR"] = offered.folder
    return env


def _uv() -> Path | None:
    here = Path(sys.executable)
    candidates = (here.parent.parent / "tools" / "uv", here.with_name("uv"))
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


def _offered(task: Path) -> Pythons:
    try:
        return decoder_of(Pythons).decode((task / PYTHONS_NAME).read_bytes())
    except FileNotFoundError:
        return Pythons(problem="the node's shim is too old to bring it")
    except (OSError, msgspec.DecodeError) as error:
        return Pythons(problem=f"what the node brought cannot be read: {error}")


def _folder(task: Path, owner: Identity | None) -> Path:
    folder = task / FOLDER_NAME
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
        if owner is not None:
            # The job's user may not be in the node's group, and passes through this folder.
            task.chmod(task.stat().st_mode | 0o001)
            os.chown(folder, owner.uid, owner.gid)
    except OSError as error:
        raise CannotStart(f"the folder of Python cannot be made: {error.strerror}") from error
    return folder


def _why(version: str, offered: Pythons, output: str, root: Path) -> str:
    if not any((root / loader.lstrip("/")).exists() for loader in _LOADERS):
        return (
            f"python {version}: the image has none, and is not built on glibc (as Alpine, which has"
            f" musl), so no other one runs in it: use an image with Python {version}, or on Debian"
        )
    if offered.problem is not None:
        return (
            f"python {version}: the image has none, and the node could not bring it"
            f" ({offered.problem}): use an image with it, or ask the node's operator for a mirror"
            " (--python-mirror of the shim)"
        )
    return _failed(version, output)


def _failed(version: str, output: str) -> str:
    last = (output.splitlines() or ["uv failed without a word"])[-1]
    return f"python {version}: its venv cannot be made: {last.strip()[:300]}"


if __name__ == "__main__":
    sys.exit(main())
