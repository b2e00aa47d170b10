"""The program that a job of submitit's brings: a zip that has submitit and cloudpickle too, so that
its image needs Python alone."""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PROGRAM = "program.zip"
_PACKAGES = ("submitit", "cloudpickle", "typing_extensions")
_IN_JOB = "fairlead_in_job"
_MAIN = f"""\
import os, sys

# Behind what the image has: only what it lacks is taken from here.
sys.path.append(sys.path.pop(0))
sys.path.insert(0, os.getcwd())
from {_IN_JOB}.main import main

sys.exit(main(sys.path[-1]))
"""
_ENTRY_POINTS = f"""\
[submitit]
job_environment = {_IN_JOB}.environment:FairleadJobEnvironment
"""


@cache
def program() -> bytes:
    """Return the zip. It is the same each time, so it is sent once."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(_members()):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return made.getvalue()


def _members() -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", _MAIN.encode()
    # submitit finds the environment by its entry point, as in an installed package.
    info = f"{_IN_JOB}-1.dist-info"
    yield f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {_IN_JOB}\nVersion: 1\n".encode()
    yield f"{info}/entry_points.txt", _ENTRY_POINTS.encode()
    own = Path(__file__).parent / "in_job"
    for file in own.glob("*.py"):
        yield f"{_IN_JOB}/{file.name}", file.read_bytes()
    for package in _PACKAGES:
        yield from _sources(package)


def _sources(package: str) -> Iterator[tuple[str, bytes]]:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return
    origin = Path(spec.origin)
    files = [origin] if spec.submodule_search_locations is None else origin.parent.rglob("*.py")
    root = origin.parent if spec.submodule_search_locations is None else origin.parent.parent
    for file in files:
        if not file.name.startswith("test_"):
            yield file.relative_to(root).as_posix(), file.read_bytes()
