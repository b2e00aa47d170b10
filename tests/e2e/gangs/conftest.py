"""Five machines and a controller with short limits, shared by all tests of gangs: four nodes of a
gang and a spare one. Each test leaves all of them running and free."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.gangs.lab import GangLab
from tests.support.images import busybox_root
from tests.support.machines import machines
from tests.support.processes import ControllerProcess

_CONFIG = """\
limits: {waits: [0s, 1s], no_capacity_wait: 1s, reincarnation_timeout: 60s}
node_failure: {probe_every: 1s, unreachable_after: 4s, after: 20s}
"""


@pytest.fixture(scope="session")
def whole_gang_lab(
    runtime: Path, testbed_folder: Path, numbers: Iterator[int]
) -> Iterator[GangLab]:
    folder = testbed_folder / f"gang{next(numbers)}"
    folder.mkdir()
    root = busybox_root(folder / "busybox")
    config = folder / "controller.yaml"
    config.write_text(_CONFIG)
    controller = ControllerProcess(folder / "controller", "--config", config, outlasts_tests=True)
    with machines(folder, runtime, 5) as nodes:
        for node in nodes:
            node.dockerd.import_image("busybox:e2e", root)
        controller.start()
        lab = GangLab(controller, nodes, folder, "busybox:e2e")
        for node in nodes:
            lab.add(node)
        yield lab
        controller.close()
    assert "Traceback" not in controller.daemon.log.read_text(errors="replace"), (
        controller.daemon.tail()
    )


@pytest.fixture
def gang_lab(whole_gang_lab: GangLab) -> Iterator[GangLab]:
    """The machines and the controller are there for the next test, whatever this one has done."""
    yield whole_gang_lab
    whole_gang_lab.repair()
