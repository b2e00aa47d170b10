"""Services through the controller's proxy: a real sshd, real containers, and no port published."""

from __future__ import annotations

import contextlib
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.support.lab import RunLab
from tests.support.waiting import wait_until

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


def ask(lab: RunLab, name: str, token: str | None, timeout: float = 60) -> tuple[int, str]:
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


class Load:
    """Clients that ask on and on; `failed` has what was no success."""

    def __init__(self, lab: RunLab, name: str) -> None:
        self._lab, self._name = lab, name
        self._stop = threading.Event()
        self.failed: list[tuple[int, str]] = []
        self.asked = 0

    def _ask(self) -> None:
        while not self._stop.is_set():
            status, text = ask(self._lab, self._name, self._lab.controller.token)
            self.asked += 1
            if status != 200:
                self.failed.append((status, text))

    @contextlib.contextmanager
    def running(self, clients: int = 4) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def wait_for(self, more: int) -> None:
        until = self.asked + more
        wait_until(lambda: self.asked >= until, what=f"{more} more requests")


def test_a_replica_that_is_killed_under_load_loses_no_request(lab: RunLab) -> None:
    serve(lab, "web", replicas=2)
    wait_until(lambda: len(replicas_seen(lab, "web")) == 2, 120, "two replicas")
    first = lab.attempts("web")[-1]["id"]
    container = lab.dockerd.docker("ps", "-q", "--filter", f"name={first}")
    load = Load(lab, "web")
    with load.running():
        load.wait_for(50)
        lab.dockerd.docker("kill", "-s", "KILL", container)
        load.wait_for(200)
    assert load.failed == []


def test_tokens_and_keys_open_a_service_and_websockets_pass(lab: RunLab) -> None:
    serve(lab, "own", replicas=1)
    wait_until(lambda: ask(lab, "own", lab.controller.token)[0] == 200, 120, "a replica")
    assert ask(lab, "own", None)[0] == 401
    assert ask(lab, "own", "fl_wrong")[0] == 401
    key = lab.cli("service", "key", "add", "own").succeeded().output.strip()
    status, text = ask(lab, "own", key)
    assert (status, text.split(" saw ")[1]) == (200, "nothing")
    url = f"{lab.controller.url}/services/own/ws".replace("http", "ws", 1)
    headers = {"Authorization": f"Bearer {key}"}
    with connect(url, additional_headers=headers, proxy=None) as talk:
        talk.send("hello")
        assert talk.recv(timeout=60) == "HELLO"
    lab.controller.restart()
    wait_until(lambda: ask(lab, "own", key)[0] == 200, 60, "the service after a restart")


def test_a_request_wakes_a_service_without_replicas(lab: RunLab) -> None:
    scaling = {"metric": "rps", "target": 10}
    serve(lab, "sleepy", replicas="0..1", scaling=scaling)
    lab.wait_for("sleepy", "pending")
    status, text = ask(lab, "sleepy", lab.controller.token, timeout=120)
    assert (status, " saw nothing" in text) == (200, True)
