"""The templates of node images, as far as one can look at them without building one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.daemons import run
from tests.support.ssh_daemon import CHECKOUT

pytestmark = pytest.mark.e2e

TEMPLATES = CHECKOUT / "packer"
STEPS = sorted((TEMPLATES / "steps").glob("*.sh"))
BUILDERS = ("qemu", "amazon-ebs", "googlecompute", "azure-arm")


def packer(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["packer", *map(str, words)],
        env={**os.environ, "CHECKPOINT_DISABLE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_templates_are_formatted() -> None:
    for folder in (TEMPLATES, TEMPLATES / "plugins"):
        done = packer("fmt", "-check", "-diff", folder)
        assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("builder", BUILDERS)
def test_the_templates_are_valid(builder: str, tmp_path: Path) -> None:
    bundle = tmp_path / "fairlead-node.tar"
    bundle.touch()
    offline = ("-var", "qemu_base_checksum=none", "-var", f"qemu_output={tmp_path / 'out'}")
    only = f"-only={builder}.node"
    done = packer("validate", only, "-var", f"bundle={bundle}", *offline, TEMPLATES)
    assert done.returncode == 0, done.stdout


def test_an_image_without_a_bundle_is_refused() -> None:
    done = packer("validate", "-var", "qemu_base_checksum=none", TEMPLATES)
    assert done.returncode == 1
    assert "bundle" in done.stdout


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.stem)
def test_each_step_is_a_shell_script(step: Path) -> None:
    run(["sh", "-n", step])


def test_each_step_is_in_the_build() -> None:
    build = (TEMPLATES / "node.pkr.hcl").read_text()
    assert [step.name for step in STEPS if f"steps/{step.name}" not in build] == []
