"""Runs that share a node do not reach each other, asked with real packets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import images
from tests.support.daemons import DaemonFailed, run
from tests.support.docker_daemon import DockerDaemon
from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.waiting import LONG, wait_until

pytestmark = pytest.mark.e2e

_SERVE = "mkdir /w && echo {word} > /w/f && httpd -p 8080 -h /w"
_GET = "printf 'GET /f HTTP/1.0\\r\\n\\r\\n'"
_ASK = _GET + " | nc -w {seconds} {address} 8080 | tail -n 1 | grep . || echo nothing"
_PING = "ping -c 1 -W {seconds} {address} >/dev/null && echo pong || echo silence"


@pytest.fixture(scope="module")
def dockerd_of_a_node(testbed_folder: Path, namespace: str) -> Iterator[DockerDaemon]:
    """As on a machine of its own, without the other engines of this one."""
    folder = testbed_folder / "node-docker"
    folder.mkdir()
    daemon = DockerDaemon(folder, netns=namespace)
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module", params=["docker", "agent"])
def lab(
    request: pytest.FixtureRequest,
    dockerd_of_a_node: DockerDaemon,
    namespace: str,
    runtime: Path,
    testbed_folder: Path,
    numbers: Iterator[int],
) -> Iterator[RunLab]:
    """On each kind of networks."""
    folder = testbed_folder / f"lab{next(numbers)}"
    dockerd = dockerd_of_a_node
    image = dockerd.import_image("busybox:e2e", images.busybox_root(folder / "busybox"))
    options = ("--networks", request.param, "--runtime", runtime)
    shim = ShimProcess(
        folder / "node",
        "docker",
        *options,
        env=dockerd.env,
        outlasts_tests=True,
        netns=namespace,
    )
    controller = ControllerProcess(folder / "controller", outlasts_tests=True)
    shim.start()
    controller.start()
    made = RunLab(controller, shim, dockerd, None, 0, folder, image)  # type: ignore[arg-type]
    made.cli("node", "add", "n1", "--local", shim.socket).succeeded()
    yield made
    controller.close()
    shim.close()


def test_a_run_reaches_no_container_of_another_run(lab: RunLab, namespace: str) -> None:
    """The same commands reach what the job itself serves: it is the network that keeps silent."""
    small = {"cpu": 0.5}
    serve = [_SERVE.format(word="theirs"), "echo serving", UNTIL_ASKED]
    lab.start("server", commands=serve, resources=small)
    lab.wait_for_log("server", b"serving")
    theirs = lab.address("server")
    wait_until(lambda: _is_there(namespace, theirs), what="the server to be reached from its node")
    questions = [
        asking.format(address=address, seconds=seconds)
        for address, seconds in (("127.0.0.1", f"{LONG:g}"), (theirs, "3"))
        for asking in (_ASK, _PING)
    ]
    commands = [_SERVE.format(word="mine"), *questions]
    result = lab.apply("stranger", commands=commands, resources=small)
    lab.let_go("server")
    assert result.succeeded().output.split() == ["mine", "pong", "nothing", "silence"]
    assert lab.wait_for("server")["status"] == "done"


def test_no_packet_passes_while_the_engine_makes_networks(lab: RunLab, namespace: str) -> None:
    """Docker before 28 takes its own jump out of FORWARD for a moment with each."""
    small = {"cpu": 0.5}
    lab.start("target", commands=["echo up", UNTIL_ASKED], resources=small)
    lab.wait_for_log("target", b"up")
    theirs = lab.address("target")
    wait_until(lambda: _is_there(namespace, theirs), what="the target to be reached from its node")
    flood = f"ping -i 0.005 {theirs} > /tmp/heard & echo flooding"
    count = "kill -INT $!; wait; grep transmitted /tmp/heard"
    lab.start("flooding", commands=[flood, UNTIL_ASKED, count], resources=small)
    lab.wait_for_log("flooding", b"flooding")
    made = 0

    def makes_networks() -> bool:
        nonlocal made
        lab.dockerd.docker("network", "create", "passing")
        lab.dockerd.docker("network", "rm", "passing")
        made += 1
        return made >= 10 and _pings_sent(lab.inside("flooding", "cat", "/proc/net/snmp")) > 100

    wait_until(makes_networks, what="a flood beside new networks")
    lab.let_go("flooding", "target")
    assert lab.wait_for("flooding")["status"] == "done"
    counted = lab.cli("logs", "flooding").succeeded().output.splitlines()[-1]
    sent, heard = re.findall(r"(\d+) packets", counted)
    assert int(sent) > 100
    assert int(heard) == 0


def _pings_sent(snmp: str) -> int:
    names, numbers = (one.split() for one in snmp.splitlines() if one.startswith("Icmp: "))
    return int(dict(zip(names, numbers, strict=True))["OutEchos"])


def test_ranks_of_a_run_on_one_node_reach_each_other(lab: RunLab) -> None:
    """At the address that torchrun and its like are told."""
    # From a file: a listener whose text is still on its way ends at the caller's end of file.
    listen = 'echo "rank 1 got this" > /tmp/note; nc -l -p $MASTER_PORT < /tmp/note'
    meet = (
        f'if [ "$NODE_RANK" = 0 ]; then {listen}; '
        "else until nc $MASTER_ADDR $MASTER_PORT </dev/null; do sleep 0.2; done; fi"
    )
    result = lab.apply(
        "pair",
        commands=[meet, 'echo "$FAIRLEAD_NODES_IPS" | sort -u | wc -l'],
        nodes=2,
        share_nodes=True,
        env_style=["torch"],
        resources={"cpu": 0.5},
    )
    lines = result.succeeded().output
    assert lines.count("rank 1 got this") == 1
    assert lines.count("2") == 2


def _is_there(namespace: str, address: str) -> bool:
    """busybox's own ping: a machine may have no other."""
    ping = ["busybox", "ping", "-c", "1", "-W", "1", address]
    try:
        run(["nsenter", f"--net=/run/netns/{namespace}", *ping])
    except DaemonFailed:
        return False
    return True
