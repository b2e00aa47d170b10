"""What the bundle's `install` has made can be taken away again, to the last file."""

from __future__ import annotations

import pytest

from installer.bundle.build import Bundle
from tests.support.booted import BootedMachine, files_of

pytestmark = pytest.mark.e2e


def test_an_uninstall_leaves_nothing_behind(
    bare_machine: BootedMachine, booted_folder: str, bundle: Bundle
) -> None:
    install = f"{booted_folder}/install"
    before = files_of(bare_machine)
    bare_machine.run(install, "--docker", "none", "--volume-prefix", "/srv")
    assert bundle.version in bare_machine.run("readlink", "/opt/fairlead/current")
    bare_machine.run(install, "--uninstall", "--purge")
    assert files_of(bare_machine) == before
