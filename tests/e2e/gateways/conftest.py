"""The lab of the tests of runs, with a gateway: a real Caddy and the agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.runs.conftest import lab, whole_lab
from tests.support.gateway import GatewayMachine
from tests.support.lab import RunLab

__all__ = ["gateway", "lab", "whole_gateway", "whole_lab"]
DOMAIN = "apps.test"


@pytest.fixture(scope="session")
def whole_gateway(
    whole_lab: RunLab, testbed_folder: Path, numbers: Iterator[int]
) -> Iterator[GatewayMachine]:
    made = GatewayMachine(testbed_folder / f"gateway{next(numbers)}", DOMAIN)
    made.start()
    options = ("--domain", DOMAIN, "--local", made.socket, "--certificate", "internal")
    whole_lab.cli("gateway", "add", "main", *options).succeeded()
    yield made
    made.close()
    for daemon in (made.agent, made.caddy):
        assert "Traceback" not in daemon.log.read_text(errors="replace"), daemon.tail()


@pytest.fixture
def gateway(whole_gateway: GatewayMachine, lab: RunLab) -> GatewayMachine:
    return whole_gateway
