"""An account of EC2 on this machine: moto as a server, and a front before it."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from tests.support.daemons import Daemon
from tests.support.ec2_front import Computers, Ec2Front, front_of
from tests.support.in_thread import served_in_thread
from tests.support.ssh_daemon import free_port


@contextmanager
def moto_server(folder: Path) -> Iterator[str]:
    """Run moto as a server, which has every service of AWS; its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    daemon = Daemon(argv, folder / "moto.log", outlasts_tests=True)

    def answers() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{url}/moto-api/", timeout=30) as answer:
            return bool(answer.status == 200)
        return False

    daemon.spawn()
    daemon.wait_ready(answers)
    try:
        yield url
    finally:
        daemon.kill9()


def front_in_thread(
    url: str, computers: Computers | None = None
) -> AbstractContextManager[Ec2Front]:
    return served_in_thread(front_of(url, computers))
