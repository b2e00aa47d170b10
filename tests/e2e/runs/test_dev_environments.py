"""Dev environments: a user's own ssh reaches one, a browser the IDE of another, and one that is
left alone stops."""

from __future__ import annotations

import tarfile
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.e2e.runs.visitor import Visitor, line_from
from tests.support.lab import RunLab
from tests.support.ssh_daemon import free_port
from tests.support.waiting import LONG, wait_until

pytestmark = pytest.mark.e2e

SMALL = {"cpu": 0.1, "memory": "64MB"}
LIMIT = 15.0
"""Seconds: long enough for a visitor who comes after the job began, on a busy machine."""
_PYTHON = "/opt/fairlead/runtime/bin/python3.11 -I -S -X utf8=1"
_APP = (Path(__file__).parent / "notebooks.py").read_text()
STAND_IN = [
    f"cat > /tmp/app.py <<'END'\n{_APP}\nEND",
    f"printf '#!/bin/sh\\nexec {_PYTHON} /tmp/app.py \"$@\"\\n' > /bin/jupyter-lab",
    "chmod +x /bin/jupyter-lab",
]
"""A program in JupyterLab's place; with the interpreter that is in each container."""
SERVED = 8000
INSTALL = b"""\
set -e
cd ~/.server
for archive in by-*; do mkdir $archive.d; tar xzf $archive -C $archive.d; done
(trap '' HUP; exec sh by-scp.d/serve) >log 2>&1 </dev/null &
echo installed $(ls -d *.d | wc -l)
"""
"""The script of an editor."""


@pytest.fixture
def user(lab: RunLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Visitor:
    return Visitor.with_a_key(lab, tmp_path, monkeypatch)


def open_one(lab: RunLab, name: str, **fields: Any) -> None:
    lab.start(name, type="dev-environment", resources=SMALL, stop_duration="1s", **fields)


def test_a_session_keeps_a_dev_environment_and_without_one_it_stops(
    lab: RunLab, user: Visitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    open_one(
        lab, "desk", ide="vscode", init=["echo made > made"], inactivity_duration=f"{LIMIT:g}s"
    )
    wait_until(lambda: lab.attempts("desk")[-1]["ports"].get("ssh"), what="the port of ssh")
    lab.cli("ssh-config", "desk", "--install").succeeded()
    config = str(tmp_path / ".ssh/config")
    # Its end as the job sees it: on a busy machine, ssh ends here seconds later.
    work = f"sleep {LIMIT * 1.1}; cat /workflow/made; date +%s"
    worked = user.openssh("ssh", "-F", config, "desk", work)

    made, left_at = worked.stdout.split()
    assert (worked.returncode, made) == (0, b"made")
    run = lab.wait_for("desk")
    last = run["jobs"][0]["attempts"][-1]
    assert last["termination_reason"] == "inactivity_duration_exceeded"
    assert last["status"] == "terminated"
    assert datetime.fromisoformat(last["terminating_at"]).timestamp() >= int(left_at) + LIMIT - 1
    assert b"without an SSH session or a request" in lab.log("desk")


def test_an_editor_installs_its_server_and_comes_back_to_it(user: Visitor, tmp_path: Path) -> None:
    """The steps of VS Code, Cursor, Windsurf and Zed: a script over stdin, an archive in each way
    that one can be sent, a server on the loopback that outlives its session, and forwards to it
    beside other channels of one connection."""
    archive, mux, forwarded = pack(tmp_path), str(tmp_path / "mux"), free_port()
    with user.run("editor", type="dev-environment", ide="vscode", commands=[], resources=SMALL):
        config = str(user.config("editor"))
        batch = f"mkdir .server\nput {archive} .server/by-sftp\n".encode()
        sent = [
            user.openssh("sftp", "-b", "-", "-F", config, "editor", stdin=batch),
            user.openssh("scp", "-F", config, str(archive), "editor:.server/by-scp"),
            user.ssh("editor", "editor", "cat > .server/by-cat", stdin=archive.read_bytes()),
            user.ssh("editor", "-T", "editor", "sh", stdin=INSTALL),
        ]
        assert [(done.returncode, done.stderr) for done in sent] == [(0, b"")] * 4
        assert sent[-1].stdout == b"installed 3\n"
        with user.connected("editor", "-M", "-S", mux, "-L", f"{forwarded}:127.0.0.1:{SERVED}"):
            first = wait_until(lambda: line_from(forwarded), what="the server")
            shared = ["ssh", "-F", config, "-S", mux, "-O", "check", "editor"]
            is_shared = user.openssh(*shared).returncode
            beside = [user.ssh("editor", "-S", mux, "editor", f"echo {n}") for n in range(5)]
        socks = free_port()
        with user.connected("editor", "-D", str(socks)):
            again = wait_until(lambda: line_from(socks, socks_to=SERVED), what="the same server")

    assert (first, is_shared) == (again, 0)
    assert first.startswith(b"server ")
    assert [done.stdout for done in beside] == [f"{number}\n".encode() for number in range(5)]


def pack(folder: Path) -> Path:
    (folder / "serve").write_text(f"while :; do echo server $$ | nc -l -p {SERVED}; done\n")
    with tarfile.open(folder / "server.tar.gz", "w:gz") as archive:
        archive.add(folder / "serve", "serve")
    return folder / "server.tar.gz"


def test_a_browser_reaches_the_ide_with_its_users_login(lab: RunLab) -> None:
    open_one(lab, "notes", ide="jupyter", init=STAND_IN)
    wait_until(lambda: ask(lab, "notes", lab.controller.token)[0] == 200, LONG, "the IDE")

    status, seen = ask(lab, "notes", lab.controller.token)
    assert (status, seen.split()[0]) == (200, "/services/notes/lab")
    assert "--ServerApp.base_url=/services/notes/" in seen
    assert ask(lab, "notes", None)[0] == 401
    url = f"{lab.controller.url}/services/notes/api/kernels/1/channels".replace("http", "ws", 1)
    headers = {"Authorization": f"Bearer {lab.controller.token}"}
    with connect(url, additional_headers=headers, proxy=None, open_timeout=LONG) as kernel:
        kernel.send("1 + 1")
        assert kernel.recv(timeout=LONG) == "1 + 1 of /services/notes/api/kernels/1/channels"
    assert lab.inspect("notes")["dev_environment"]["path"] == "/services/notes/"


def test_a_home_outlasts_its_run_and_init_that_fails_ends_it(lab: RunLab) -> None:
    fields: dict[str, Any] = {"type": "dev-environment", "resources": SMALL, "home": "hers"}
    first = lab.apply("keeper", **fields, init=["echo kept > note", "exit 3", "true"])
    again = lab.apply("keeper", **fields, init=["grep kept /root/note", "exit 4"])

    assert (first.status, again.status) == (3, 4)
    reason = lab.attempts("keeper")[-1]["termination_reason"]
    assert reason == "container_exited_with_error"


def ask(lab: RunLab, name: str, token: str | None) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{lab.controller.url}/services/{name}/lab", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=LONG) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
