"""A second version of what a node gets, made of this checkout's sources: for upgrades."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from installer.bundle.build import Bundle, BundleBuilder
from tests.support.ssh_daemon import CHECKOUT

_FILES = ("pyproject.toml", "requirements-node.lock", "LICENSE")
_PACKAGES = (
    *("common", "shim", "runner", "entrypoint", "fairlead", "installer"),
    *("packer", "cloud-init"),
)


def another_version(folder: Path) -> Bundle:
    """It differs from the checkout's by a line of the licence and an empty line of the runner."""
    checkout = folder / "other-checkout"
    checkout.mkdir()
    for name in _FILES:
        shutil.copy(CHECKOUT / name, checkout)
    for name in _PACKAGES:
        shutil.copytree(CHECKOUT / name, checkout / name)
    with (checkout / "LICENSE").open("a") as license_file:
        license_file.write("Another version.\n")
    with (checkout / "runner/__init__.py").open("a") as sources:
        sources.write("\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        return BundleBuilder(checkout, CHECKOUT / ".build").build()
