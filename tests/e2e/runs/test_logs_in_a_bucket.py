"""A controller that loses its disk loses no byte of a log that is in a bucket."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.store.process_lab import ProcessLab
from tests.support.object_storage import ObjectStorage, object_storage
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[ObjectStorage]:
    with object_storage(tmp_path) as started:
        yield started


@pytest.fixture
def lab(
    testbed_folder: Path, numbers: Iterator[int], storage: ObjectStorage, tmp_path: Path
) -> Iterator[ProcessLab]:
    options = ["--logs-bucket", str(storage.bucket), "--logs-endpoint", storage.endpoint]
    folder = testbed_folder / f"logs{next(numbers)}"
    controller = ControllerProcess(folder / "c", *options)
    shim = ShimProcess(folder / "n", "process")
    shim.start()
    controller.start()
    lab = ProcessLab(controller, tmp_path)
    lab.cli("node", "add", "here", "--local", shim.socket).succeeded()
    yield lab
    controller.close()
    shim.close()


def test_a_controller_without_its_disk_has_the_whole_log_of_a_job_that_goes_on_and_ends(
    lab: ProcessLab, storage: ObjectStorage, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    # More than a part at once, so that some of it is in the bucket while the job runs.
    much = "seq -w 1 1500000"
    count = f"i=0; while [ ! -e {go} ]; do echo line $i; i=$((i+1)); sleep 0.02; done"
    lab.start("job", commands=[much, count])
    wait_until(lambda: any(".seg" in key for key in storage.objects()), what="a part")
    _lose_the_disk(lab)
    lab.goes_on("job")
    go.touch()
    assert lab.wait_for("job")["status"] == "done"
    whole = lab.log("job")
    lines = whole.decode().splitlines()
    assert lines[:1_500_000] == [f"{number:07d}" for number in range(1, 1_500_001)]
    assert lines[1_500_000:] == [f"line {number}" for number in range(len(lines) - 1_500_000)]

    _lose_the_disk(lab)
    assert lab.log("job") == whole
    assert any(key.endswith("/complete") for key in storage.objects())


def _lose_the_disk(lab: ProcessLab) -> None:
    lab.controller.kill9()
    shutil.rmtree(lab.controller.data / "logs")
    lab.controller.start()
