"""A controller with TLS, used through the command: a log and a watch go through it, too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.daemons import Daemon
from tests.support.processes import run_cli
from tests.support.ssh_daemon import free_port
from tests.support.testbed import ShimFactory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


def test_a_run_is_submitted_and_followed_over_tls(
    shim_process: ShimFactory, tmp_path: Path
) -> None:
    shim = shim_process("process")
    authority, files = Authority(tmp_path), (tmp_path / "api.pem", tmp_path / "api.key")
    authority.issue(*files)
    url = f"https://127.0.0.1:{free_port()}"
    data = tmp_path / "controller"
    program = Path(sys.executable).parent / "fairlead"
    listen = ("--listen", url.removeprefix("https://"))
    options = ("--tls-cert", files[0], "--tls-key", files[1])
    daemon = Daemon(
        [program, "controller", "--data", data, *listen, *options], tmp_path / "controller.log"
    )
    settings = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "FAIRLEAD_URL": ""}
    trusting = settings | {"SSL_CERT_FILE": str(authority.file)}
    daemon.spawn()
    try:
        wait_until(lambda: f"serves on {url}" in daemon.log.read_text())
        login = ("login", url, "--token-file", data / "admin-token")
        refused = run_cli(*login, env=settings)
        assert (refused.status, "its certificate is not trusted" in refused.errors) == (1, True)
        run_cli(*login, env=trusting).succeeded()
        run_cli("node", "add", "here", "--local", shim.socket, env=trusting).succeeded()
        job = tmp_path / "job.yaml"
        job.write_text("{type: task, commands: [echo over tls], resources: {cpu: 0.5}}")
        assert "over tls" in run_cli("apply", "-f", job, env=trusting).succeeded().output
    finally:
        daemon.stop()
    assert "has no TLS" not in daemon.log.read_text()
