"""The rights of a job's container, tried from inside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docker_daemon import DockerDaemon
from tests.support.lab import RunLab
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.ssh_daemon import SshDaemon
from tests.support.testbed import ShimFactory

pytestmark = pytest.mark.e2e

_SYS_PTRACE = 1 << 19
_NET_RAW = 1 << 13
_PROXY = {"HTTP_PROXY": "http://127.0.0.1:3128", "NO_PROXY": "localhost"}


@pytest.fixture(scope="module")
def proxied_lab(
    dockerd: DockerDaemon,
    sshd: SshDaemon,
    runtime: Path,
    busybox_image: str,
    testbed_folder: Path,
    numbers: Iterator[int],
) -> Iterator[RunLab]:
    """Its operator allows everything."""
    folder = testbed_folder / f"lab{next(numbers)}"
    options = ("--runtime", runtime, "--container-proxy", "--allow-privileged")
    env = {**dockerd.env, **_PROXY}
    shim = ShimProcess(folder / "node", "docker", *options, env=env, outlasts_tests=True)
    controller = ControllerProcess(folder / "controller", outlasts_tests=True)
    shim.start()
    controller.start()
    sshd.authorize(controller.public_key)
    made = RunLab(controller, shim, dockerd, sshd, sshd.port, folder, busybox_image)
    made.connect_node("n1", "--host-key", sshd.host_key)
    yield made
    controller.close()
    shim.close()


def capabilities(status: str) -> int:
    line = next(line for line in status.splitlines() if line.startswith("CapBnd"))
    return int(line.split()[1], 16)


def test_a_job_gets_its_limits_and_no_other(lab: RunLab) -> None:
    commands = [
        "ulimit -n",
        "ulimit -Hn",
        "df -k /dev/shm | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2",
    ]
    limits = {"nofile": "1000:2000"}
    resources = {"shm_size": "5MiB"}
    result = lab.apply("limits", commands=commands, ulimits=limits, resources=resources)
    assert result.succeeded().output.split() == ["1000", "2000", "5120"]


def test_a_job_cannot_have_more_processes_than_it_asked_for(lab: RunLab) -> None:
    commands = ["for i in $(seq 40); do sleep 1000 & done; wait"]
    result = lab.apply("pids", commands=commands, pids_limit=30)
    assert result.status != 0
    assert "fork" in result.errors + result.output


def test_capabilities_are_added_and_taken_away(lab: RunLab) -> None:
    ask = ["cat /proc/self/status"]
    plain = capabilities(lab.apply("caps1", commands=ask).succeeded().output)
    changed = lab.apply("caps2", commands=ask, cap_add=["SYS_PTRACE"], cap_drop=["NET_RAW"])
    found = capabilities(changed.succeeded().output)
    assert plain & (_SYS_PTRACE | _NET_RAW) == _NET_RAW
    assert found & (_SYS_PTRACE | _NET_RAW) == _SYS_PTRACE


def test_a_job_without_any_capability_runs_as_its_user_with_a_read_only_root(
    lab: RunLab, image_with_users: str
) -> None:
    result = lab.apply(
        "bare",
        image=image_with_users,
        commands=["id -u", "grep CapEff /proc/self/status", "echo x > /tmp/x", "echo x > /x"],
        cap_drop=["ALL"],
        read_only_root=True,
    )
    assert result.output.split() == ["1234", "CapEff:", "0000000000000000"]
    assert (result.status, "Read-only file system" in result.errors) == (1, True)


def test_with_the_engines_init_a_job_ends_as_without(lab: RunLab) -> None:
    result = lab.apply("init", commands=["cat /proc/1/comm", "exit 7"], init=True)
    assert (result.status, result.output) == (7, "docker-init\n")


def test_with_the_engines_init_a_job_that_kills_its_runner_ends_its_container(lab: RunLab) -> None:
    lab.submit("orphaned", commands=["kill -9 $PPID; sleep 1000"], init=True)
    assert lab.wait_for("orphaned")["status"] == "failed"
    (attempt,) = lab.attempts("orphaned")
    assert attempt["termination_reason"] == "container_exited_with_error"
    assert lab.container("orphaned") == ""


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("privileged", "privileged", True), ("capable", "cap_add", ["SYS_ADMIN"])],
)
def test_an_option_that_no_operator_allows_is_refused_at_submit(
    lab: RunLab, name: str, field: str, value: object
) -> None:
    refused = lab.apply(name, commands=["true"], **{field: value})
    assert refused.status != 0
    assert "privileged: no node could ever hold it" in refused.errors
    assert "--allow-privileged" in refused.errors


def test_where_the_operator_allows_it_a_capability_of_the_host_is_given(
    proxied_lab: RunLab,
) -> None:
    result = proxied_lab.apply("admin", commands=["cat /proc/self/status"], cap_add=["SYS_ADMIN"])
    assert capabilities(result.succeeded().output) & 1 << 21


def test_the_nodes_proxy_is_told_to_jobs_and_a_jobs_own_wins(proxied_lab: RunLab) -> None:
    commands = ["echo $HTTP_PROXY $http_proxy $no_proxy"]
    told = proxied_lab.apply("proxy1", commands=commands).succeeded()
    assert told.output.split() == [_PROXY["HTTP_PROXY"], _PROXY["HTTP_PROXY"], "localhost"]
    own = proxied_lab.apply("proxy2", commands=commands, env={"http_proxy": "mine"}).succeeded()
    assert own.output.split() == [_PROXY["HTTP_PROXY"], "mine", "localhost"]


def test_a_proxys_password_keeps_the_shim_from_starting(
    shim_process: ShimFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:hunter2@127.0.0.1:1")
    with pytest.raises(AssertionError, match="HTTPS_PROXY contains a password") as caught:
        shim_process("process", "--container-proxy")
    assert "hunter2" not in str(caught.value)
