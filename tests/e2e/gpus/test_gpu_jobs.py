"""Jobs on GPUs through all real parts: command, controller, sshd, shim, dockerd, runner.

The driver's library and NVIDIA's runtime hook are stand-ins; everything that calls them is not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import images, nvml
from tests.support.daemons import run
from tests.support.docker_daemon import DockerDaemon
from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.nvml import StandIn, hook, uuid
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.ssh_daemon import SshDaemon
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

SHOW = "echo $NVIDIA_VISIBLE_DEVICES; ls /dev | grep nvidia"
ONE = {"cpu": 0.5, "memory": "256MB", "gpu": 1}


@pytest.fixture(scope="module")
def gpu_dockerd(testbed_folder: Path) -> Iterator[DockerDaemon]:
    """An engine that finds NVIDIA's hook on its PATH when it starts."""
    folder = testbed_folder / "gd"
    folder.mkdir()
    tools = hook.install(folder / "tools")
    namespace = f"{testbed_folder.name}-gpus"
    run(["ip", "netns", "add", namespace])
    daemon = DockerDaemon(folder, {"PATH": f"{tools}:{os.environ['PATH']}"}, namespace)
    daemon.start()
    yield daemon
    daemon.stop()
    run(["ip", "netns", "delete", namespace])


@pytest.fixture(scope="module")
def state(testbed_folder: Path) -> Path:
    """The file of the driver's answers."""
    return testbed_folder / "gd" / "nvml-state"


@pytest.fixture
def machine(whole_gpu_lab: RunLab, state: Path) -> Iterator[StandIn]:
    """Two sound GPUs, whatever the test before has made of them."""
    standin = StandIn(state)
    yield standin
    standin.tell()


@pytest.fixture(scope="module")
def whole_gpu_lab(
    gpu_dockerd: DockerDaemon,
    runtime: Path,
    nvml_library: Path,
    state: Path,
    testbed_folder: Path,
    numbers: Iterator[int],
    sshd: SshDaemon,
) -> Iterator[RunLab]:
    StandIn(state)
    folder = testbed_folder / f"g{next(numbers)}"
    image = gpu_dockerd.import_image("busybox:gpu", images.busybox_root(folder / "busybox"))
    tools = testbed_folder / "gd" / "tools"
    env = {
        **gpu_dockerd.env,
        nvml.STATE: str(state),
        "LD_LIBRARY_PATH": str(nvml_library.parent),
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    options = ("--runtime", runtime, "--cpus", "4", "--memory", "4GB")
    shim = ShimProcess(folder / "node", "docker", *options, env=env, outlasts_tests=True)
    controller = ControllerProcess(folder / "controller", outlasts_tests=True)
    shim.start()
    controller.start()
    sshd.authorize(controller.public_key)
    lab = RunLab(controller, shim, gpu_dockerd, sshd, sshd.port, folder, image)
    lab.connect_node("n1", "--host-key", sshd.host_key)
    yield lab
    controller.close()
    shim.close()
    gpu_dockerd.remove_containers()


@pytest.fixture
def gpu_lab(whole_gpu_lab: RunLab, machine: StandIn) -> Iterator[RunLab]:
    """Both GPUs are offered. A test ends its runs; those that it has left are ended after it."""
    if len(whole_gpu_lab.node()["gpus"]) != 2:
        whole_gpu_lab.shim.restart()  # it lists them now, and else twice a minute
    wait_until(lambda: _gpus(whole_gpu_lab) == [(True, False)] * 2, what="both GPUs to be offered")
    yield whole_gpu_lab
    machine.tell()
    if not whole_gpu_lab.shim.daemon.is_alive():
        whole_gpu_lab.shim.start()
    whole_gpu_lab.end_runs()


def _gpus(lab: RunLab) -> list[tuple[bool, bool]]:
    """Healthy and in use, of each."""
    return [(gpu["healthy"], gpu["in_use"]) for gpu in lab.node()["gpus"]]


def _until_log(lab: RunLab, name: str, text: bytes) -> None:
    wait_until(lambda: text in lab.log(name), what=f"{text!r} in the log of {name}")


def test_a_job_gets_its_gpu_and_no_other(gpu_lab: RunLab) -> None:
    gpu_lab.start("first", commands=[SHOW, UNTIL_ASKED], resources=ONE)
    gpu_lab.apply("second", commands=[SHOW], resources=ONE).succeeded()
    gpu_lab.apply("third", commands=["ls /dev | grep -c nvidia || true"], resources={"cpu": 0.5})
    assert gpu_lab.log("third") == b"0\n"
    given = {gpu_lab.log(name) for name in ("first", "second")}
    assert given == {f"{uuid(i)}\nnvidia{i}\n".encode() for i in range(2)}
    gpu_lab.let_go("first")
    gpu_lab.wait_for("first")
    wait_until(lambda: _gpus(gpu_lab) == [(True, False)] * 2, what="both GPUs to be free")


def test_a_broken_gpu_is_told_once_and_its_job_goes_on_elsewhere(
    gpu_lab: RunLab, machine: StandIn
) -> None:
    gpu_lab.start("job", commands=["echo up", UNTIL_ASKED, "echo down"], resources=ONE)
    ((index,),) = [_indexes(gpu_lab, "job")]
    _until_log(gpu_lab, "job", b"up\n")
    machine.raise_xid(index, 13)
    _until_log(gpu_lab, "job", b"XID 13")
    gpu_lab.shim.restart()
    wait_until(lambda: gpu_lab.node()["status"] == "connected", what="the node to be back")
    assert gpu_lab.inspect("job")["status"] == "running", "an application's fault ends nothing"
    wait_until(lambda: _breaks(gpu_lab, machine, index), what="the GPU to be broken")
    machine.change(index, lost=1)
    wait_until(lambda: len(gpu_lab.attempts("job")) == 2, what="a second attempt")
    gpu_lab.wait_for("job", "running")
    gpu_lab.let_go("job")
    assert gpu_lab.wait_for("job")["status"] == "done"
    first, second = gpu_lab.attempts("job")
    assert (first["status"], first["termination_reason"]) == ("failed", "gpu_unhealthy")
    name = f"[gpu-health] GPU {index} (NVIDIA H100 80GB HBM3, {uuid(index)})"
    lost = f"{name}: XID 79 (the GPU has fallen off the bus); no new job gets this GPU"
    assert first["message"] == lost
    log = gpu_lab.cli("logs", "job", "--attempt", "0").succeeded()
    assert log.output == "up\n"
    assert log.errors.splitlines() == [
        f"{name}: XID 13 (graphics engine exception), caused by the application",
        lost,
    ]
    assert second["gpus"] == [uuid(1 - index)]
    assert second["termination_reason"] == "done_by_runner"
    gpu_lab.apply("next", commands=[SHOW], resources=ONE).succeeded()
    assert gpu_lab.log("next") == f"{uuid(1 - index)}\nnvidia{1 - index}\n".encode()
    _clear(gpu_lab, machine, index)


def test_a_gpu_that_is_lost_while_the_shim_is_down_ends_its_job_and_may_be_taken_out(
    gpu_lab: RunLab, machine: StandIn
) -> None:
    gpu_lab.start("job", commands=["echo up", UNTIL_ASKED], resources=ONE)
    ((index,),) = [_indexes(gpu_lab, "job")]
    _until_log(gpu_lab, "job", b"up\n")
    gpu_lab.shim.kill9()
    machine.gpus[0] = machine.gpus.pop(1) if index == 0 else machine.gpus[0]
    machine.gpus.pop(1, None)
    machine.tell()
    gpu_lab.shim.start()
    wait_until(lambda: len(gpu_lab.attempts("job")) == 2, what="a second attempt")
    gpu_lab.wait_for("job", "running")
    gpu_lab.let_go("job")
    assert gpu_lab.wait_for("job")["status"] == "done"
    first, second = gpu_lab.attempts("job")
    assert (first["termination_reason"], second["gpus"]) == ("gpu_unhealthy", [uuid(1 - index)])
    errors = gpu_lab.cli("logs", "job", "--attempt", "0").succeeded().errors
    assert errors.splitlines() == [first["message"]]
    assert "the GPU is lost: the driver no longer has it; no new job" in errors
    node = gpu_lab.node()
    assert node["unfit"] is None
    assert [gpu["uuid"] for gpu in node["gpus"] if not gpu["healthy"]] == [uuid(index)]
    cleared = gpu_lab.cli("node", "clear-gpu", "n1", uuid(index)).succeeded()
    assert f"no longer expects GPU {uuid(index)}" in " ".join(cleared.output.split())
    gpu_lab.shim.restart()
    # The node is told to be connected until the controller misses the shim that was killed.
    wait_until(lambda: _offered(gpu_lab) == {uuid(1 - index)}, what="the other GPU alone")
    assert gpu_lab.node()["unfit"] is None


def test_a_card_that_is_split_anew_is_no_loss_and_its_instances_go_to_whom_asks_for_them(
    gpu_lab: RunLab, machine: StandIn
) -> None:
    machine.split(1, 3)
    wait_until(lambda: len(_offered(gpu_lab)) == 4, what="the card to be offered as its instances")
    assert gpu_lab.node()["unfit"] is None
    gpu_lab.apply("whole", commands=[SHOW], resources=ONE).succeeded()
    assert gpu_lab.log("whole").startswith(f"{uuid(0)}\n".encode())
    two = {**ONE, "gpu": "MIG-1g-10gb:2"}
    gpu_lab.apply("slices", commands=[SHOW], resources=two).succeeded()
    given, _, files = gpu_lab.log("slices").partition(b"\n")
    assert (given.count(b"MIG-"), files) == (2, b"nvidia1\n")
    refused = gpu_lab.apply("three", commands=[SHOW], resources={**ONE, "gpu": 3})
    assert refused.status == 1
    assert "MIG instances are given only by name, such as MIG-1g-10gb" in refused.errors
    machine.lines.clear()
    machine.gpus[1]["mig"] = 0
    machine.tell()
    gpu_lab.shim.restart()
    wait_until(lambda: _offered(gpu_lab) == {uuid(0), uuid(1)}, what="two whole GPUs")
    assert gpu_lab.node()["unfit"] is None


def _offered(lab: RunLab) -> set[str]:
    return {gpu["uuid"] for gpu in lab.node()["gpus"]}


def _breaks(lab: RunLab, machine: StandIn, index: int) -> bool:
    """Again and again: what happens before the shim listens, the library does not tell."""
    machine.raise_xid(index, 79)
    (gpu,) = [gpu for gpu in lab.node()["gpus"] if gpu["uuid"] == uuid(index)]
    return not gpu["healthy"]


def _clear(lab: RunLab, machine: StandIn, index: int) -> None:
    assert [healthy for healthy, _ in _gpus(lab)].count(False) == 1
    assert f"GPU {uuid(index)}: cordoned: XID 79" in _listed(lab)
    machine.change(index, lost=0)
    lab.cli("node", "clear-gpu", "n1", uuid(index)).succeeded()
    wait_until(lambda: _gpus(lab) == [(True, False)] * 2, what="both GPUs to be offered")
    again = lab.cli("node", "clear-gpu", "n1", uuid(index))
    assert (again.status, again.output) == (1, "")
    assert f"there is no cordoned GPU {uuid(index)}" in again.errors


def test_a_gpu_whose_memory_is_still_held_waits_for_its_next_job(
    gpu_lab: RunLab, machine: StandIn
) -> None:
    both = {**ONE, "gpu": 2}
    gpu_lab.start("first", commands=[UNTIL_ASKED], resources=both)
    machine.tell("process 0 4711 40000")
    gpu_lab.let_go("first")
    gpu_lab.wait_for("first")
    held = wait_until(lambda: _messages(gpu_lab), what="the node to say that memory is held")
    assert held == ["its memory is still held by process 4711"]
    gpu_lab.submit("second", commands=[SHOW], resources=both)
    waits = wait_until(lambda: _pending_reason(gpu_lab, "second"), what="a reason to wait")
    assert "needs 2 GPU; best node n1 has 1 such GPU free of 2" in waits
    machine.tell()
    assert gpu_lab.wait_for("second")["status"] == "done"


def _indexes(lab: RunLab, name: str) -> list[int]:
    (attempt,) = lab.inspect(name)["jobs"][0]["attempts"]
    return [int(gpu[-12:]) for gpu in attempt["gpus"]]


def _listed(lab: RunLab) -> str:
    """`node list` in one line; its table breaks long cells."""
    return " ".join(lab.cli("node", "list").succeeded().output.split())


def _messages(lab: RunLab) -> list[str]:
    return [gpu["message"] for gpu in lab.node()["gpus"] if gpu["message"]]


def _pending_reason(lab: RunLab, name: str) -> Any:
    return lab.inspect(name)["jobs"][0]["pending_reason"]
