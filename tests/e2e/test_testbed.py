"""The test bed's own parts: what they promise to the tests that stand on them."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.docker_daemon import DockerDaemon
from tests.support.ssh_daemon import SshDaemon
from tests.support.testbed import ProxyFactory
from tests.support.waiting import LONG

pytestmark = pytest.mark.e2e


def test_a_container_of_the_busybox_image_runs(dockerd: DockerDaemon, busybox_image: str) -> None:
    assert dockerd.docker("run", "--rm", "--network=none", busybox_image, "echo", "hi") == "hi"


def test_the_noshell_image_has_no_shell(dockerd: DockerDaemon, noshell_image: str) -> None:
    run = ("run", "--rm", "--network=none", noshell_image)
    assert dockerd.docker(*run, "/tool", "echo", "hi") == "hi"
    with pytest.raises(AssertionError, match="/bin/sh"):
        dockerd.docker(*run, "/bin/sh", "-c", "true")


def test_containers_outlive_a_killed_dockerd(dockerd: DockerDaemon, busybox_image: str) -> None:
    run = ("run", "-d", "--network=none", busybox_image)
    container = dockerd.docker(*run, "sleep", "600")
    state = ("inspect", "-f", "{{.State.Pid}}", container)
    before = dockerd.docker(*state)
    dockerd.kill9()
    dockerd.start()
    assert dockerd.docker(*state) == before
    dockerd.remove_containers()


def _ssh(sshd: SshDaemon, key: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    known_hosts = key.with_name("known_hosts")
    known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key}\n")
    argv: list[str | Path] = [
        "ssh",
        "-F",
        "none",
        "-i",
        key,
        "-p",
        str(sshd.port),
        "-o",
        "BatchMode=yes",
    ]
    pinned = ["-o", f"UserKnownHostsFile={known_hosts}", "-o", "IdentitiesOnly=yes"]
    host = f"{sshd.user}@127.0.0.1"
    return subprocess.run(
        [*argv, *pinned, *options, host, "id"], capture_output=True, timeout=LONG, check=False
    )


def test_the_tunnel_user_runs_no_command(sshd: SshDaemon, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    refused = _ssh(sshd, key)
    assert b"Permission denied" in refused.stderr
    sshd.authorize(key.with_suffix(".pub").read_text())
    answer = _ssh(sshd, key)
    assert b"not available" in answer.stdout
    assert answer.returncode != 0


def test_a_cut_connection_is_reset_until_it_is_restored(
    sshd: SshDaemon, cuttable_proxy: ProxyFactory
) -> None:
    proxy = cuttable_proxy(sshd.port)
    with socket.create_connection(("127.0.0.1", proxy.port), LONG) as client:
        assert client.recv(4) == b"SSH-"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            _read_to_the_end(client)
    proxy.restore()
    with socket.create_connection(("127.0.0.1", proxy.port), LONG) as client:
        assert client.recv(4) == b"SSH-"


def _read_to_the_end(client: socket.socket) -> None:
    while client.recv(4096):
        pass
