"""Runs, services, gateways and the shim on the engine's own networks, for nodes where the shim
cannot connect containers. The tests of every change have the default, in which the shim does where
it can; FAIRLEAD_TEST_NETWORKS names another kind.
"""

from __future__ import annotations

import os

from bench.proofs._tests import prove
from shim.settings import NetworkKind
from tests.support.processes import NETWORKS


def main() -> None:
    os.environ.setdefault(NETWORKS, NetworkKind.DOCKER.value)
    prove(
        __doc__,
        "tests/e2e/runs",
        "tests/e2e/services",
        "tests/e2e/gateways",
        "tests/e2e/test_shim.py",
        "tests/e2e/test_shim_faults.py",
    )
