"""Which lines of the pure core the simulated worlds have run.

The whole program is run once more under coverage, so that what is run on import counts; each
process of the pool then notes its own lines, and the first one puts them together.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path

import coverage

_FOLDER = "FAIRLEAD_SIMULATION_COVERAGE"
_PACKAGES = ["controller.lifecycle", "controller.scheduling"]


def prepare() -> None:
    """Returns under coverage only."""
    if coverage.Coverage.current() is not None:
        return
    folder = tempfile.mkdtemp(prefix="fairlead-coverage-")
    os.environ[_FOLDER] = folder
    run = ["-m", "coverage", "run", f"--source={','.join(_PACKAGES)}", f"--data-file={folder}/main"]
    os.execv(sys.executable, [sys.executable, *run, "-m", "tests.simulation", *sys.argv[1:]])


def begin() -> None:
    """In each process of the pool."""
    folder = os.environ.get(_FOLDER)
    if folder is None:
        return
    own = coverage.Coverage(data_file=f"{folder}/pool", data_suffix=True, source=_PACKAGES)
    own.start()
    Finalize(None, _end, args=(own,), exitpriority=10)


def _end(own: coverage.Coverage) -> None:
    own.stop()
    own.save()


def told() -> str:
    """A table of the modules, with the lines that nothing has run."""
    folder = Path(os.environ[_FOLDER])
    first = coverage.Coverage.current()
    if first is not None:
        first.stop()
        first.save()
    everything = coverage.Coverage(data_file=str(folder / "all"), source=_PACKAGES)
    everything.combine([str(path) for path in folder.iterdir()])
    table = io.StringIO()
    everything.report(file=table, show_missing=True)
    return table.getvalue()
