"""The bundle of this checkout, machines that boot, and hosts that are no nodes yet."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from installer.bundle.build import Bundle, BundleBuilder
from tests.support.bare_host import BareHost
from tests.support.booted import BootedMachine, booted_machines
from tests.support.ssh_daemon import CHECKOUT, make_tunnel_user
from tests.support.testbed import ShimFactory

BareHosts = Callable[[], BareHost]


@pytest.fixture
def bare_host(
    shim_process: ShimFactory, testbed_folder: Path, numbers: Iterator[int]
) -> Iterator[BareHosts]:
    """Call it: each has a shim of its own, which serves once it is installed."""
    make_tunnel_user()
    started: list[BareHost] = []

    def start() -> BareHost:
        shim = shim_process("process")
        started.append(BareHost(testbed_folder / f"bare{next(numbers)}", shim))
        started[-1].start()
        return started[-1]

    yield start
    for host in started:
        host.stop()


@pytest.fixture(scope="session")
def bundle() -> Bundle:
    """Built if it is not, as `./dev bundle` does."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        return BundleBuilder(CHECKOUT, CHECKOUT / ".build").build()


@pytest.fixture(scope="session")
def bare_machine(testbed_folder: Path) -> Iterator[BootedMachine]:
    """It boots, and Fairlead was never on it. Tests leave it so."""
    if shutil.which("systemd-nspawn") is None:
        pytest.fail("systemd-nspawn is missing: apt-get install systemd-container", pytrace=False)
    folder = testbed_folder / "bare"
    with booted_machines(folder, CHECKOUT / ".build/images", 1) as (machine,):
        yield machine


@pytest.fixture(scope="session")
def booted_folder(bare_machine: BootedMachine, bundle: Bundle) -> str:
    """The bundle's folder on the machine, as an operator has unpacked it."""
    folder = f"/root/fairlead-node-{bundle.version}"
    shutil.copytree(bundle.folder, bare_machine.root / folder.lstrip("/"), symlinks=True)
    return folder
