"""The lab of the tests of runs, with a gateway: a real HAProxy, a real Caddy, and the agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.runs.conftest import lab, whole_lab
from tests.support.gateway import GatewayMachine
from tests.support.lab import RunLab
from tests.support.testbed import ShimFactory
from tests.support.waiting import wait_until

__all__ = ["gateway", "lab", "whole_gateway", "whole_lab"]
DOMAIN = "apps.test"
AddNode = Callable[..., None]
"""Takes a node's name, and more options of its shim."""


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
    """The test before may have restarted its agent."""
    wait_until(lambda: lab.get("/v1/gateways/main")["status"] == "connected", what="the agent")
    return whole_gateway


@pytest.fixture
def add_node(lab: RunLab, shim_process: ShimFactory) -> Iterator[AddNode]:
    """Adds a node that exposes ports to gateways. It is removed when the test ends."""
    added: list[str] = []

    def add(name: str, *options: str | Path) -> None:
        lends = lab.sshd.lending(lab.folder / f"exposed-{name}")
        shim = shim_process("docker", "--cpus", "2", "--memory", "4GiB", *lends, *options)
        replace(lab, shim=shim).add_node(name, "--host-key", lab.sshd.host_key).succeeded()
        lab.wait_for_node(lambda node: node["status"] == "connected", name)
        added.append(name)

    yield add
    lab.end_runs()
    lab.cli("node", "resume", "n1").succeeded()
    for name in added:
        lab.cli("node", "remove", name).succeeded()
