"""Debian's docker-registry on the loopback, private behind a password file, with real pushes."""

from __future__ import annotations

import base64
import json
import socket
from contextlib import suppress
from pathlib import Path

from tests.support.daemons import Daemon, inside, run
from tests.support.docker_daemon import DockerDaemon
from tests.support.ssh_daemon import free_port

_CONFIG = """
version: 0.1
storage:
  filesystem:
    rootdirectory: {folder}/storage
http:
  addr: 127.0.0.1:{port}
auth:
  htpasswd:
    realm: tests
    path: {folder}/htpasswd
"""


class DockerRegistry:
    """`login` is `user:password`; `netns` names a network namespace to live in."""

    def __init__(self, folder: Path, login: str, netns: str | None = None) -> None:
        self._netns = netns
        folder.mkdir(parents=True)
        self._folder = folder
        self._login = login
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        user, _, password = login.partition(":")
        # `-B`: the registry takes bcrypt alone.
        (folder / "htpasswd").write_text(run(["htpasswd", "-Bbn", user, password]))
        config = folder / "config.yml"
        config.write_text(_CONFIG.format(folder=folder, port=self.port))
        self._daemon = Daemon(
            [*inside(netns), "docker-registry", "serve", config],
            folder / "log",
            outlasts_tests=True,
        )

    def start(self) -> None:
        self._daemon.spawn()
        self._daemon.wait_ready(self._answers)

    def stop(self) -> None:
        self._daemon.kill9()

    def push(self, dockerd: DockerDaemon, image: str, name: str) -> str:
        """The reference under which the local image is in the registry now."""
        reference = f"{self.address}/{name}"
        auths = {self.address: {"auth": base64.b64encode(self._login.encode()).decode()}}
        (self._folder / "config.json").write_text(json.dumps({"auths": auths}))
        dockerd.docker("tag", image, reference)
        dockerd.docker("--config", self._folder, "push", "-q", reference)
        dockerd.docker("rmi", reference)
        return reference

    def _answers(self) -> bool:
        # This process is in another network namespace and cannot connect.
        if self._netns is not None:
            return "listening on" in (self._folder / "log").read_text(errors="replace")
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False
