"""Hydra's own suite for launchers, with ours; it is run by a pytest of its own."""

from __future__ import annotations

import sys

import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.test_utils.launcher_common_tests import IntegrationTestSuite, LauncherTestSuite

PYTHON = f"hydra.launcher.python={sys.executable}"


def test_hydra_discovers_the_launcher() -> None:
    # By its name: Hydra imports plugins in its own way, so the class is another one.
    assert "FairleadLauncher" in [one.__name__ for one in Plugins.instance().discover(Launcher)]


@pytest.mark.parametrize(("launcher_name", "overrides"), [("fairlead", [PYTHON])])
class TestFairleadLauncher(LauncherTestSuite):
    pass


@pytest.mark.parametrize(
    ("task_launcher_cfg", "extra_flags"),
    [({}, ["-m", "hydra/launcher=fairlead", PYTHON])],
)
class TestFairleadLauncherIntegration(IntegrationTestSuite):
    pass
