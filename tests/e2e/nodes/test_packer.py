"""The templates of node images, as far as one can look at them without building one."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.daemons import run
from tests.support.ssh_daemon import CHECKOUT
from tests.support.waiting import LONG

pytestmark = pytest.mark.e2e

TEMPLATES = CHECKOUT / "packer"
STEPS = sorted((TEMPLATES / "steps").glob("*.sh"))
BUILDERS = ("qemu", "amazon-ebs", "googlecompute", "azure-arm", "hcloud")


def packer(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["packer", *map(str, words)],
        env={**os.environ, "CHECKPOINT_DISABLE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONG,
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
    token = ("-var", "hetzner_token=canary")
    done = packer("validate", only, "-var", f"bundle={bundle}", *offline, *token, TEMPLATES)
    assert done.returncode == 0, done.stdout


def test_an_image_without_a_bundle_is_refused() -> None:
    done = packer("validate", "-var", "qemu_base_checksum=none", TEMPLATES)
    assert done.returncode == 1
    assert "bundle" in done.stdout


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.stem)
def test_each_step_is_a_shell_script(step: Path) -> None:
    assert run(["sh", "-n", step]) == ""


def test_each_step_is_in_the_build() -> None:
    build = (TEMPLATES / "node.pkr.hcl").read_text()
    assert [step.name for step in STEPS if f"steps/{step.name}" not in build] == []


DRIVER = "580.159.04"
ARCHIVE = {
    "nvidia-driver-pinning-580": "580-1",
    "nvidia-open": f"{DRIVER}-1",
    "nvidia-container-toolkit": "1:1.19.2-1",
    "nvidia-fabricmanager": f"{DRIVER}-1",
}
ASKED = {
    "GPU": "true",
    "NVIDIA_DRIVER_BRANCH": "580",
    "NVIDIA_DRIVER_MINIMUM": "580.159.03",
    "NVIDIA_TOOLKIT_MINIMUM": "1.19.1",
    "SECURE_BOOT": "off",
    "NVSWITCH": "false",
    "INFINIBAND": "false",
    "PEERMEM": "false",
    "EFA_INSTALLER": "",
    "EFA_INSTALLER_SHA256": "",
}
PLAYED = """#!/bin/sh
# Each program notes how it was called; those below answer as on a machine that is built.
echo "$(basename "$0") $*" >> "$PLAYED/calls"
line() { grep "^$1 " "$PLAYED/archive"; }
case $(basename "$0") in
dpkg) case $1 in
    --print-architecture) echo amd64 ;;
    --compare-versions) exec /usr/bin/dpkg "$@" ;;
    esac ;;
dpkg-query) line "$4" | cut -d ' ' -f 2 ;;
apt-cache) case $1 in
    madison) line "$2" | sed 's/ / | /; s/$/ | archive/' ;;
    pkgnames) cut -d ' ' -f 1 "$PLAYED/archive" | grep "^$2" ;;
    esac ;;
od) cat "$PLAYED/secure-boot" ;;
modinfo) exit 1 ;;
esac
"""


class Machine:
    """A machine on which a step of the build runs; its programs are played."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.archive = dict(ARCHIVE)
        self.secure_boot = ""
        for name in (
            *("apt-get", "apt-cache", "dpkg", "dpkg-query", "curl", "install", "systemctl"),
            *("od", "modinfo", "sha256sum"),
        ):
            program = folder / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(PLAYED)
            program.chmod(0o755)

    def run(self, step: str, **asked: str) -> subprocess.CompletedProcess[str]:
        lines = [f"{name} {version}\n" for name, version in self.archive.items()]
        (self._folder / "archive").write_text("".join(lines))
        (self._folder / "secure-boot").write_text(self.secure_boot)
        path = f"{self._folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", TEMPLATES / "steps" / f"{step}.sh"],
            env={"PATH": path, "PLAYED": str(self._folder), **ASKED, **asked},
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )

    @property
    def calls(self) -> list[str]:
        return (self._folder / "calls").read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


INSTALL = "apt-get install -q -y --no-install-recommends"


def test_a_gpu_image_has_the_pinned_driver_and_no_fabric_manager(machine: Machine) -> None:
    done = machine.run("gpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{INSTALL} nvidia-driver-pinning-580" in machine.calls
    assert not [call for call in machine.calls if "fabricmanager" in call]


def test_a_board_with_nvswitch_gets_the_fabric_manager_of_the_drivers_version(
    machine: Machine,
) -> None:
    assert machine.run("gpu", NVSWITCH="true").returncode == 0
    assert f"{INSTALL} nvidia-fabricmanager={DRIVER}-1" in machine.calls
    assert "systemctl enable nvidia-fabricmanager.service" in machine.calls
    machine.archive["nvidia-fabricmanager"] = "580.159.05-1"
    machine.archive["nvidia-fabricmanager-580"] = "580.159.04-1"
    refused = machine.run("gpu", NVSWITCH="true")
    assert refused.returncode == 1
    assert f"no nvidia-fabricmanager of the driver's version {DRIVER}" in refused.stderr
    del machine.archive["nvidia-fabricmanager"]
    assert machine.run("gpu", NVSWITCH="true").returncode == 0
    assert f"{INSTALL} nvidia-fabricmanager-580={DRIVER}-1" in machine.calls


@pytest.mark.parametrize(
    ("missing", "asked", "words"),
    [
        (
            {"nvidia-driver-pinning-580": None, "nvidia-driver-pinning-590": "590-1"},
            {},
            "has no package nvidia-driver-pinning-580.*set nvidia_driver_branch to one of 590",
        ),
        ({"nvidia-open": "590.44.01-1"}, {}, "which is not of the branch 580"),
        ({"nvidia-open": "580.95.05-1"}, {}, "older than 580.159.03"),
        ({"nvidia-container-toolkit": "1.18.0-1"}, {}, "older than 1.19.1"),
        ({}, {"PEERMEM": "true"}, "DOCA-OFED"),
        ({}, {"GPU": "false", "NVSWITCH": "true"}, "nvswitch=true needs gpu=true"),
    ],
)
def test_what_was_asked_for_and_cannot_be_had_ends_the_build(
    machine: Machine, missing: dict[str, str | None], asked: dict[str, str], words: str
) -> None:
    for name, version in missing.items():
        if version is None:
            del machine.archive[name]
        else:
            machine.archive[name] = version
    done = machine.run("gpu", **asked)
    assert done.returncode == 1
    assert re.search(words, done.stderr)


def test_secure_boot_ends_the_build_of_a_gpu_image_that_was_not_made_for_it(
    machine: Machine,
) -> None:
    machine.secure_boot = "   1\n"
    done = machine.run("gpu")
    assert (done.returncode, "has Secure Boot on" in done.stderr) == (1, True)
    assert machine.run("gpu", SECURE_BOOT="enrolled").returncode == 0
    assert machine.run("gpu", GPU="false").returncode == 0


def test_an_installer_of_efa_is_run_only_with_the_checksum_of_its_file(machine: Machine) -> None:
    done = machine.run("rdma", EFA_INSTALLER="https://example/efa.tar.gz")
    assert (done.returncode, "efa_installer_sha256" in done.stderr) == (1, True)
    assert machine.run("rdma").returncode == 0
