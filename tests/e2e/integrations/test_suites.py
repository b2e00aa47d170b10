"""The suites of submitit and Hydra, unchanged, with our executor and our launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ControllerProcess

pytestmark = pytest.mark.e2e
_CHECKOUT = Path(__file__).parents[3]
_OF_EXECUTORS = (
    "test_local_map_array or test_local_submit_array or test_local_error or test_pickle_output or "
    "test_get_first_task_error or test_stdout or test_requeuing or test_custom_checkpoint or "
    "test_weird_dir"
)
"""Those of the local executor's that look at its results, and not at its processes."""
_ALONE = "test_find_good_plugin or test_skip_bad_plugin"
"""They demand that no other plugin is installed, so they can't pass next to one."""


def suite(controller: ControllerProcess, *options: str | Path) -> str:
    """Run these tests by a pytest of their own; return what it says at the end."""
    own = ["-c", os.devnull, "--rootdir", str(_CHECKOUT), "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *own, *map(str, options)],
        cwd=_CHECKOUT,
        env={**os.environ, **controller.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    lines: list[str] = done.stdout.splitlines()
    return lines[-1]


def test_submitits_tests_of_plugins_and_jobs_pass_with_ours_installed(
    controller: ControllerProcess,
) -> None:
    modules = [f"submitit.core.test_{name}" for name in ("plugins", "core", "async")]
    told = suite(controller, "--pyargs", *modules, "-k", f"not ({_ALONE})")
    assert told.startswith("21 passed")


def test_submitits_tests_of_executors_pass_with_ours(controller: ControllerProcess) -> None:
    plugin = "tests.e2e.integrations.fairlead_is_local"
    told = suite(
        controller, "-p", plugin, "--pyargs", "submitit.local.test_local", "-k", _OF_EXECUTORS
    )
    assert told.startswith("15 passed")


def test_hydras_suite_of_launchers_passes_with_ours(controller: ControllerProcess) -> None:
    told = suite(controller, Path(__file__).with_name("hydra_suite.py"))
    assert told.startswith("21 passed")
