"""Somebody with a key of their own, the command `fairlead`, and OpenSSH's programs."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.waiting import LONG, wait_until

Done = subprocess.CompletedProcess[bytes]


@dataclass
class Visitor:
    lab: RunLab
    folder: Path
    key: Path

    @classmethod
    def with_a_key(cls, lab: RunLab, folder: Path, patch: pytest.MonkeyPatch) -> Visitor:
        """The commands of `lab` send and use this key alone from now on."""
        key = folder / "id_ed25519"
        make_key(key)
        patch.setenv("FAIRLEAD_SSH_KEY", str(key))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        return cls(lab, folder, key)

    @contextlib.contextmanager
    def run(self, name: str, **fields: Any) -> Iterator[None]:
        """A run whose job goes on meanwhile and that can be logged in to. Nothing of it is left."""
        fields.setdefault("commands", [UNTIL_ASKED])
        self.lab.start(name, **fields)
        try:
            wait_until(lambda: self._is_let_in(name), what=f"the way into {name}")
            yield
        finally:
            self.lab.cli("stop", name, "--abort")
            self.lab.wait_for(name)

    def _is_let_in(self, name: str) -> bool:
        """The port is told, and the node lends it to the visitor's key: others may have the same
        port at another address, or had it a moment ago."""
        port = self.lab.attempts(name)[-1]["ports"].get("ssh")
        way = f'"{self.lab.ssh_host(name)}:{port}"'
        key = self.key.with_suffix(".pub").read_text().split()[1]
        lent = self.lab.sshd.jump_keys.read_text().splitlines()
        return any(way in line and key in line for line in lent)

    def config(self, name: str, *options: str) -> Path:
        path = self.folder / f"{name}.config"
        path.write_text(self.lab.cli("ssh-config", name, *options).succeeded().output)
        return path

    def ssh(self, name: str, *arguments: str, stdin: bytes = b"") -> Done:
        return self.openssh("ssh", "-F", str(self.config(name)), *arguments, stdin=stdin)

    def openssh(self, *argv: str, stdin: bytes = b"") -> Done:
        return subprocess.run(argv, input=stdin, capture_output=True, timeout=LONG, check=False)

    @contextlib.contextmanager
    def connected(self, name: str, *options: str) -> Iterator[None]:
        """A connection that runs nothing and forwards what the options say."""
        argv = ["ssh", "-F", str(self.config(name)), "-N", *options, name]
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL) as process:
            try:
                yield
            finally:
                process.terminate()
                process.wait(LONG)


def make_key(path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(command, check=True, timeout=LONG)


def line_from(port: int, socks_to: int | None = None) -> bytes:
    """Return what a server on this side's port says first; nothing while there is none."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as client:
        if socks_to is not None:
            client.sendall(b"\x05\x01\x00")
            client.recv(2)
            client.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + socks_to.to_bytes(2, "big"))
            client.recv(10)
        return client.recv(64)
    return b""
