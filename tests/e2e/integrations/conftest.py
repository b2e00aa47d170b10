"""A controller with this machine as its node, on the process engine."""

from __future__ import annotations

import pytest

from tests.support.processes import ControllerProcess
from tests.support.testbed import ControllerFactory, ShimFactory


@pytest.fixture
def controller(
    shim_process: ShimFactory, controller_process: ControllerFactory
) -> ControllerProcess:
    shim = shim_process("process", "--cpus", "2", "--memory", "4GiB")
    made = controller_process()
    made.cli("node", "add", "n1", "--local", shim.socket).succeeded()
    return made
