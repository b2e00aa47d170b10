"""Units that are installed: systemd understands them, and hears from the shim what it waits for."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import socket
import stat
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from shim.monitoring.watchdog import ALIVE, READY, STOPPING
from tests.support.daemons import Daemon, run
from tests.support.processes import ShimProcess
from tests.support.ssh_daemon import CHECKOUT, free_port
from tests.support.waiting import LONG

pytestmark = pytest.mark.e2e

UNITS = sorted((CHECKOUT / "packer" / "systemd").glob("*.*"))
SHIM = CHECKOUT / "packer" / "systemd" / "fairlead-shim.service"
CONTROLLER = SHIM.with_name("fairlead-controller.service")
PROGRAMS = Path(sys.executable).parent
_PROGRAM = re.compile(r"^Exec\w+=(\S+)", re.MULTILINE)
_COMMAND = re.compile(r"^ExecStart=(.*)$", re.MULTILINE)
_OPTIONS = re.compile(r"\$FAIRLEAD_\w+_OPTIONS")
OWN_MOUNTS = ("ProtectSystem", "PrivateTmp", "ProtectHome", "ReadOnlyPaths", "PrivateDevices")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_every_line_of_the_unit(unit: Path, tmp_path: Path) -> None:
    units = tmp_path / "etc" / "systemd" / "system"
    units.mkdir(parents=True)
    for program in _PROGRAM.findall(unit.with_suffix(".service").read_text()):
        stand_in = tmp_path / program.lstrip("/")
        stand_in.parent.mkdir(parents=True, exist_ok=True)
        stand_in.touch(mode=0o755)
    for name in ("sysinit.target", "basic.target", "shutdown.target"):
        (units / name).write_text("[Unit]\nDefaultDependencies=no\n")
    # A unit of a socket names the service of its name.
    for one in {unit, unit.with_suffix(".service")}:
        shutil.copy(one, units)
    said = run(["systemd-analyze", "verify", f"--root={tmp_path}", unit.name])
    assert [line for line in said.splitlines() if unit.name in line] == []


def _command(unit: Path, paths: dict[str, Path], options: str) -> list[str]:
    """The command that systemd would run, with other paths and these options in its variable."""
    (line,) = _COMMAND.findall(unit.read_text().replace("\\\n", " "))
    text = _OPTIONS.sub(options, line)
    for installed, ours in paths.items():
        assert installed in text
        text = text.replace(installed, str(ours))
    return shlex.split(text)


def test_the_controllers_command_serves_with_the_options_of_its_file(testbed_folder: Path) -> None:
    folder, port = testbed_folder / "controller-unit", free_port()
    folder.mkdir()
    paths = {"/opt/fairlead/venv/bin": PROGRAMS, "/var/lib/fairlead-controller": folder / "data"}
    argv = _command(CONTROLLER, paths, f"--listen 127.0.0.1:{port} --keep-logs 10d")
    daemon = Daemon(argv, folder / "log")
    daemon.spawn()
    daemon.wait_ready(lambda: f"the controller serves on http://127.0.0.1:{port}" in daemon.tail())
    assert daemon.stop() == 0


def test_a_request_waits_in_the_socket_of_systemd_while_the_controller_is_started_again(
    testbed_folder: Path,
) -> None:
    folder = testbed_folder / "controller-socket"
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        argv: list[str | Path] = [PROGRAMS / "fairlead", "controller", "--data", folder / "data"]
        argv.append("--listen")
        # Its address is that of the unit; the port must be the same.
        daemon = Daemon([*argv, f"127.0.0.2:{port}"], folder / "log", listening=held)
        serves = f"the controller serves on http://127.0.0.1:{port}"
        daemon.spawn()
        daemon.wait_ready(lambda: serves in daemon.tail())
        assert daemon.stop() == 0
        client = HTTPConnection("127.0.0.1", port, timeout=LONG)
        client.request("GET", "/v1/health")
        daemon.spawn()
        with closing(client), client.getresponse() as answer:
            assert answer.status == 200
        assert daemon.stop() == 0
        other = Daemon([*argv, f"127.0.0.1:{free_port()}"], folder / "other-log", listening=held)
        other.spawn()
        assert other.wait() == 1
        assert "give both the same port" in other.tail()


def test_the_shims_command_lends_jump_keys_where_its_file_says_so(testbed_folder: Path) -> None:
    folder = testbed_folder / "shim-unit"
    folder.mkdir()
    keys = folder / "jump" / "authorized_keys"
    keys.parent.mkdir()
    paths = {
        "/opt/fairlead/current/bin": PROGRAMS,
        "/var/lib/fairlead": folder / "data",
        "/run/fairlead/shim.sock": folder / "run" / "shim.sock",
    }
    argv = _command(SHIM, paths, f"--engine process --jump-keys {keys}")
    daemon = Daemon(argv, folder / "log")
    daemon.spawn()
    daemon.wait_ready((folder / "run" / "shim.sock").exists)
    assert daemon.stop() == 0
    assert stat.S_IMODE(keys.stat().st_mode) == 0o644


def test_the_shims_unit_shares_its_mounts_with_dockerd() -> None:
    settings = {line.partition("=")[0] for line in SHIM.read_text().splitlines()}
    assert settings.isdisjoint(OWN_MOUNTS)


def test_systemd_hears_that_the_shim_is_ready_alive_and_stopping(testbed_folder: Path) -> None:
    folder = testbed_folder / "systemd"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.settimeout(LONG)
        # It feeds the watchdog each second: what is said while we do not listen fits in the socket.
        env = {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": "2000000"}
        shim = ShimProcess(folder / "n", "process", env=env)
        try:
            shim.daemon.spawn()
            until = _listen(manager, {READY, ALIVE})
            shim.daemon.signal(signal.SIGTERM)
            after = _listen(manager, {STOPPING})
            assert shim.daemon.wait() == 0
        finally:
            shim.close()
    assert until == {READY, ALIVE}
    assert after <= {ALIVE, STOPPING}


def _listen(manager: socket.socket, wanted: set[str]) -> set[str]:
    """All that is said until the wanted was. Always at once: a socket of this kind holds ten words,
    and what is said then is lost."""
    heard: set[str] = set()
    while not wanted <= heard:
        heard.add(manager.recv(100).decode())
    return heard
