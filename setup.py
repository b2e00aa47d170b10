"""What pyproject.toml cannot say: what is built holds what the dashboard takes from npm.

So `pip install '.[controller]'` of a fresh clone serves the dashboard that the tests have seen.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import SetupError

sys.path.insert(0, str(Path(__file__).parent))

from controller.web.vendored import VendorError, bring

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


class BuildPy(build_py):
    def run(self) -> None:
        bring_scripts()
        super().run()


class Sdist(sdist):
    def run(self) -> None:
        bring_scripts()
        super().run()


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
