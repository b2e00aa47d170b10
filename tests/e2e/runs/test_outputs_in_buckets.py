"""Large outputs of real jobs go to an object storage, are kept while it is away, and come back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.object_storage import KEYS, ObjectStorage, object_storage
from tests.support.planted_secrets import in_files
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

WRITES = 'cd "$FAIRLEAD_OUTPUT_DIR"; head -c 2000000 /dev/urandom > model; sha256sum model'


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[ObjectStorage]:
    with object_storage(tmp_path) as started:
        yield started


@pytest.fixture
def controller(
    testbed_folder: Path, numbers: Iterator[int], storage: ObjectStorage
) -> Iterator[ControllerProcess]:
    options = ["--outputs-bucket", str(storage.bucket), "--outputs-endpoint", storage.endpoint]
    folder = testbed_folder / f"bucket{next(numbers)}"
    made = ControllerProcess(folder / "c", *options, "--outputs-bucket-above", "1MiB")
    shim = ShimProcess(folder / "n", "process")
    shim.start()
    made.start()
    made.cli("node", "add", "here", "--local", shim.socket).succeeded()
    yield made
    made.close()
    shim.close()


def test_a_large_output_survives_an_absent_bucket_and_is_pulled_from_it_later(
    controller: ControllerProcess, storage: ObjectStorage, tmp_path: Path
) -> None:
    storage.away()
    job = tmp_path / "job.yaml"
    job.write_text(f"type: task\nname: large\ncommands: ['{WRITES}']\n")
    told = controller.cli("apply", "-f", job).succeeded().output
    said = controller.daemon.log
    wait_until(lambda: "outputs wait on this disk" in said.read_text(), what="the warning")
    controller.cli("outputs", "large", "--pull", tmp_path / "before").succeeded()

    storage.back()
    controller.restart()
    wait_until(lambda: _outputs(controller)[0]["place"] is not None, what="the upload")
    (listed,) = _outputs(controller)
    assert listed["place"] == f"s3://outputs/{storage.objects()[0]}"

    _drop_the_copy_here(controller)
    controller.cli("outputs", "large", "--pull", tmp_path / "after").succeeded()
    model = (tmp_path / "after/model").read_bytes()
    assert model == (tmp_path / "before/model").read_bytes()
    assert len(model) == 2_000_000
    assert "model" in told
    _assert_keys_are_nowhere(controller)


def _outputs(controller: ControllerProcess) -> list[dict[str, object]]:
    found = json.loads(controller.cli("outputs", "large", "--json").succeeded().output)["outputs"]
    assert isinstance(found, list)
    return found


def _drop_the_copy_here(controller: ControllerProcess) -> None:
    """Let the list be old when the controller looks at it next: at its start."""
    (archive,) = (controller.data / "outputs").glob("*/*/outputs.tar")
    controller.kill9()
    os.utime(archive.parent / "about.json", (0, 0))
    controller.start()
    wait_until(lambda: not archive.exists(), what="the copy here to be removed")


def _assert_keys_are_nowhere(controller: ControllerProcess) -> None:
    secret = KEYS["AWS_SECRET_ACCESS_KEY"]
    assert list(in_files(controller.data, "large")), "its files are looked at"
    assert list(in_files(controller.data, secret)) == []
    assert secret not in controller.daemon.log.read_text()
    assert secret.encode() not in Path(f"/proc/{controller.pid}/cmdline").read_bytes()
