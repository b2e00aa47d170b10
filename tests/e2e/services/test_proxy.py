"""Services through the controller's proxy: a real sshd, real containers, and no port published."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from fairlead.rest import service_path
from tests.support.lab import RunLab
from tests.support.load import Load
from tests.support.testbed import ShimFactory
from tests.support.waiting import LONG, wait_until

pytestmark = pytest.mark.e2e

_PYTHON = "/opt/fairlead/runtime/bin/python3.11 -I -S -X utf8=1"
APP = [
    f"cat > /tmp/app.py <<'END'\n{(Path(__file__).parent / 'app.py').read_text()}\nEND",
    f"exec {_PYTHON} /tmp/app.py",
]
PROBES = [{"type": "http", "url": "/", "interval": "1s"}]
SMALL = {"cpu": 0.1, "memory": "64MB"}


def serve(lab: RunLab, name: str, **fields: Any) -> None:
    service = {"type": "service", "commands": APP, "port": 8000, "probes": PROBES}
    lab.submit(name, **{**service, "resources": SMALL, **fields})


def ask(lab: RunLab, name: str, token: str | None, timeout: float = LONG) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{lab.controller.url}/services/{name}/", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def replicas_seen(lab: RunLab, name: str, asks: int = 20) -> set[str]:
    answers = [ask(lab, name, lab.controller.token) for _ in range(asks)]
    return {text.split()[0] for status, text in answers if status == 200}


def wait_for_replicas(lab: RunLab, name: str, number: int) -> set[str]:
    """The names of all replicas, once so many answer."""

    def seen() -> set[str]:
        found = replicas_seen(lab, name)
        return found if len(found) == number else set()

    return lab.wait_until(name, seen, f"{number} replicas")


def load_of(lab: RunLab, name: str) -> Load:
    return Load(lambda: ask(lab, name, lab.controller.token))


def test_a_replica_that_is_killed_under_load_loses_no_request(lab: RunLab) -> None:
    serve(lab, "web", replicas=2)
    wait_for_replicas(lab, "web", 2)
    first = lab.attempts("web")[-1]["id"]
    container = lab.dockerd.docker("ps", "-q", "--filter", f"name={first}")
    load = load_of(lab, "web")
    with load.running(4):
        load.wait_for(50)
        lab.dockerd.docker("kill", "-s", "KILL", container)
        load.wait_for(200)
    assert load.failed == []


def change(lab: RunLab, name: str, **fields: Any) -> None:
    """Apply the service again, and wait until that is rolled out."""
    service = {"type": "service", "commands": APP, "port": 8000, "probes": PROBES}
    lab.apply(name, **{**service, "resources": SMALL, **fields}).succeeded()


def test_a_rollout_and_other_numbers_of_replicas_lose_no_request(lab: RunLab) -> None:
    serve(lab, "moved", replicas=1)
    (first,) = wait_until(lambda: replicas_seen(lab, "moved"), LONG, "a replica")
    load = load_of(lab, "moved")
    with load.running(4):
        change(lab, "moved", replicas=3)
        wait_for_replicas(lab, "moved", 3)
        change(lab, "moved", replicas=1)
        (left,) = wait_for_replicas(lab, "moved", 1)
        change(lab, "moved", replicas=1, env={"VERSION": "2"})
        (new,) = wait_until(lambda: _only(replicas_seen(lab, "moved") - {left}), what="version 2")
        load.wait_for(50)
    assert load.failed == []
    assert new not in (first, left)


def _only(names: set[str]) -> set[str]:
    return names if len(names) == 1 else set()


def test_a_drained_node_hands_its_replicas_over_and_loses_no_request(
    shim_process: ShimFactory, lab: RunLab
) -> None:
    other = replace(lab, shim=shim_process("docker", "--cpus", "4", "--memory", "4GiB"))
    serve(lab, "handed", replicas=2)
    wait_for_replicas(lab, "handed", 2)
    other.add_node("n2", "--host-key", lab.sshd.host_key).succeeded()
    lab.wait_for_node(lambda node: node["status"] == "connected", "n2")
    load = load_of(lab, "handed")
    with load.running(4):
        lab.cli("node", "drain", "n1").succeeded()
        wait_until(lambda: _nodes(lab, "handed") == ["n2", "n2"], LONG, "the replicas on n2")
        load.wait_for(50)
    assert load.failed == []
    ended = [job["attempts"][-1] for job in lab.inspect("handed")["jobs"][:2]]
    assert {attempt["termination_reason"] for attempt in ended} == {"node_drained"}
    lab.cli("node", "resume", "n1").succeeded()
    lab.cli("stop", "handed", "--abort").succeeded()
    lab.wait_for("handed")
    lab.cli("node", "remove", "n2").succeeded()


def _nodes(lab: RunLab, name: str) -> list[str]:
    """The node of each replica that gets requests."""
    replicas = lab.get(service_path(name))["replicas"]
    return [one["node"] for one in replicas if one["registered_at"] is not None]


# The shims come first: a test that fails leaves its run to `lab`, which ends it where it runs.
def test_a_replica_of_two_nodes_is_replaced_as_a_whole_while_the_other_answers(
    shim_process: ShimFactory, lab: RunLab
) -> None:
    names = ["n2", "n3", "n4"]
    for name in names:
        node = replace(lab, shim=shim_process("docker", "--cpus", "2", "--memory", "4GiB"))
        node.add_node(name, "--host-key", lab.sshd.host_key).succeeded()
    for name in names:
        lab.wait_for_node(lambda node: node["status"] == "connected", name)
    roles = ["[ $FAIRLEAD_NODE_RANK = 0 ] || exec sleep 1000", *APP]
    whole = {"cpu": 0.1, "memory": "3GB"}
    two = {"nodes": 2, "share_nodes": True, "replicas": 2}
    serve(lab, "pair", commands=roles, resources=whole, **two)
    wait_for_replicas(lab, "pair", 2)
    shown = lab.get(service_path("pair"))["replicas"]
    assert sorted(node for one in shown for node in one["nodes"]) == ["n1", *names]
    job = lab.inspect("pair")["jobs"][1]
    worker = lab.dockerd.docker("ps", "-q", "--filter", f"name={job['attempts'][-1]['id']}")
    load = load_of(lab, "pair")
    with load.running(2):
        load.wait_for(20)
        lab.dockerd.docker("kill", "-s", "KILL", worker)
        # A start that fails on a busy machine is one more try, of both jobs again.
        lab.wait_until("pair", lambda: min(_tries(lab, "pair")[:2]) > 1, "a new try of both")
        wait_for_replicas(lab, "pair", 2)
    first, second, *_ = _tries(lab, "pair")
    assert (load.failed, first) == ([], second)
    lab.cli("stop", "pair", "--abort").succeeded()
    lab.wait_for("pair")
    for name in names:
        lab.cli("node", "remove", name).succeeded()


def _tries(lab: RunLab, name: str) -> list[int]:
    return [len(job["attempts"]) for job in lab.inspect(name)["jobs"]]


def test_replicas_serve_on_after_the_controller_was_killed(lab: RunLab) -> None:
    serve(lab, "kept", replicas=2)
    before = wait_for_replicas(lab, "kept", 2)
    lab.controller.kill9()
    lab.controller.start()
    assert wait_for_replicas(lab, "kept", 2) == before
    assert len(lab.attempts("kept")) == 1


def test_the_autoscaler_follows_the_load_from_1_to_3_and_back_and_loses_no_request(
    lab: RunLab,
) -> None:
    soon = {"window": "30s", "scale_up_delay": "1s", "scale_down_delay": "1s"}
    # Low, since a busy machine answers few requests in a second.
    scaling = {"metric": "rps", "target": 0.5, **soon}
    serve(lab, "scaled", replicas="1..3", scaling=scaling)
    (first,) = wait_until(lambda: replicas_seen(lab, "scaled", 1), LONG, "a replica")
    always, rush = load_of(lab, "scaled"), load_of(lab, "scaled")
    with always.running(1, pause=3.0):
        with rush.running(4, pause=0.2):
            wait_until(lambda: len(_nodes(lab, "scaled")) == 3, LONG, "three replicas")
        wait_until(lambda: len(_nodes(lab, "scaled")) == 1, LONG, "one replica")
        always.wait_for(1)
    assert (always.failed, rush.failed) == ([], [])
    # One request: several are a load, under which another replica comes where each takes long.
    assert replicas_seen(lab, "scaled", 1) == {first}


def test_tokens_and_keys_open_a_service_and_websockets_pass(lab: RunLab) -> None:
    serve(lab, "own", replicas=1)
    wait_until(lambda: ask(lab, "own", lab.controller.token)[0] == 200, LONG, "a replica")
    assert ask(lab, "own", None)[0] == 401
    assert ask(lab, "own", "fl_wrong")[0] == 401
    key = lab.cli("service", "key", "add", "own").succeeded().output.strip()
    status, text = ask(lab, "own", key)
    assert (status, text.split(" saw ")[1]) == (200, "nothing")
    url = f"{lab.controller.url}/services/own/ws".replace("http", "ws", 1)
    headers = {"Authorization": f"Bearer {key}"}
    with connect(url, additional_headers=headers, proxy=None, open_timeout=LONG) as talk:
        talk.send("hello")
        assert talk.recv(timeout=LONG) == "HELLO"
    lab.controller.restart()
    wait_until(lambda: ask(lab, "own", key)[0] == 200, LONG, "the service after a restart")


def test_a_request_wakes_a_service_without_replicas(lab: RunLab) -> None:
    scaling = {"metric": "rps", "target": 10}
    serve(lab, "sleepy", replicas="0..1", scaling=scaling)
    lab.wait_for("sleepy", "pending")
    status, text = ask(lab, "sleepy", lab.controller.token)
    assert (status, " saw nothing" in text) == (200, True)
