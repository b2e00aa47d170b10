"""A node's sshd has an RSA, an ECDSA and an ED25519 host key, as on a stock Debian: each of them
can be accepted, pinned and changed, and none but the pinned one is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.e2e.runs.visitor import Visitor
from tests.support.lab import RunLab
from tests.support.ssh_daemon import HOST_KEY_TYPES, TUNNEL_USER, SshDaemon
from tests.support.testbed import ControllerFactory, ShimFactory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

TYPES = pytest.mark.parametrize("kind", HOST_KEY_TYPES)


@TYPES
def test_the_fingerprint_of_each_key_can_be_accepted_and_the_node_connects(
    sshd: SshDaemon, shim_process: ShimFactory, controller_process: ControllerFactory, kind: str
) -> None:
    shim, controller = shim_process("process"), controller_process()
    sshd.authorize(controller.public_key)
    where: list[str | Path] = ["--host", "127.0.0.1", "--port", str(sshd.port)]
    where += ["--socket", shim.socket]
    who = ["--user", TUNNEL_USER, "--accept-host-key", sshd.fingerprints[kind]]
    controller.cli("node", "add", "n1", *where, *who).succeeded()

    def is_connected() -> bool:
        node = controller.cli("node", "show", "n1", "--json").json
        assert node["host_key_fingerprint"] == sshd.fingerprints[kind]
        return bool(node["status"] == "connected")

    wait_until(is_connected, what="n1 to be connected")


def test_another_type_is_pinned_without_removing_the_node_and_users_come_through_it(
    lab: RunLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = Visitor.with_a_key(lab, tmp_path, monkeypatch)
    pinned = lab.sshd.fingerprint
    with user.run("visited"):
        for kind in ("rsa", "ecdsa", "ed25519"):
            wanted = lab.sshd.fingerprints[kind]
            said = lab.cli("node", "set", "n1", "--accept-host-key", wanted).succeeded().output
            assert pinned in said
            assert wanted in said
            _wait_until_connected_by(lab, wanted)
            done = user.openssh("ssh", "-v", "-F", str(user.config("visited")), "visited", "true")
            assert done.returncode == 0, done.stderr
            assert wanted.encode() in done.stderr
            pinned = wanted
        assert len(lab.attempts("visited")) == 1


def test_a_wrong_key_is_pinned_and_corrected_while_a_job_goes_on(lab: RunLab) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519")
    lab.start("going", commands=["sleep 3600"])
    container = lab.container("going")
    wrong = other.export_public_key().decode().strip()
    lab.cli("node", "set", "n1", "--host-key", wrong).succeeded()

    def refused(node: Any) -> Any:
        told = lab.sshd.fingerprint in (node["message"] or "")
        return node if told and node["status"] == "unreachable" else None

    try:
        node = lab.wait_for_node(refused)
    finally:
        lab.cli("node", "set", "n1", "--host-key", lab.sshd.host_key).succeeded()
    assert other.get_fingerprint() in node["message"]
    assert "node set" in node["message"]
    _wait_until_connected_by(lab, lab.sshd.fingerprint)
    assert (lab.container("going"), lab.inspect("going")["status"]) == (container, "running")


def _wait_until_connected_by(lab: RunLab, fingerprint: str) -> None:
    connected = ("connected", fingerprint)
    lab.wait_for_node(lambda node: (node["status"], node["host_key_fingerprint"]) == connected)
