"""What boots for the machines of clouds' doubles: shims and sshds of this host, made from the
user-data of an order as cloud-init and the scripts of an image make a node of a machine.

Each is a network namespace with the address that its cloud tells, and an sshd at port 22. Its jobs
are plain processes. In the mounts of its sshd there is a tunnel user of the name that nodes have,
and the shim's socket where nodes have it.
"""

from __future__ import annotations

import pwd
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.daemons import run
from tests.support.machines import Switch
from tests.support.processes import ShimProcess
from tests.support.ssh_daemon import TUNNEL_USER, SshDaemon, make_tunnel_user

_SOCKETS = Path("/run/fairlead")
_NODE_USER = "fairlead"
_MOUNTS = f'mount --bind "$1" /etc/passwd && mount --bind "$2" {_SOCKETS} && shift 2 && exec "$@"'


class CloudComputer:
    """One machine that was turned on."""

    def __init__(self, folder: Path, namespace: str, address: str, user_data: str) -> None:
        folder.mkdir(parents=True)
        self._namespace = namespace
        self._folder = folder
        self.document: dict[str, Any] = yaml.safe_load(user_data)
        options, key = self._install_options(), folder / "ssh/host_key_ed25519"
        self.shim = ShimProcess(
            folder / "shim",
            "process",
            *("--cpus", "1", "--memory", "1GiB"),
            *shlex.split(self._rented().get("FAIRLEAD_RENTED_OPTIONS", "")),
            outlasts_tests=True,
            netns=namespace,
            env={
                "FAIRLEAD_HOST_KEY": str(key),
                "PATH": f"{self._programs()}:/usr/sbin:/usr/bin:/sbin:/bin",
            },
        )
        (folder / "ssh").mkdir()
        within = ("unshare", "--mount", "sh", "-c", _MOUNTS, "-", str(self._users()))
        self.sshd = SshDaemon(
            folder / "ssh",
            address,
            namespace,
            port=22,
            user=_NODE_USER,
            within=(*within, str(self.shim.socket.parent)),
        )
        keys = self.document["ssh_keys"]
        key.write_text(keys["ed25519_private"])
        key.with_suffix(".pub").write_text(keys["ed25519_public"])
        self.first_key = " ".join(keys["ed25519_public"].split()[:2])
        self.sshd.authorize(options["--tunnel-key"])

    def start(self) -> None:
        self.shim.start()
        self.sshd.start()

    def host_key(self) -> str:
        """Return its present key, without comment."""
        public = self.sshd.host_key_file().with_suffix(".pub")
        return " ".join(public.read_text().split()[:2])

    def close(self) -> None:
        self.sshd.stop()
        self.shim.close()
        run(["ip", "netns", "delete", self._namespace])
        shutil.rmtree(self._folder)

    def _install_options(self) -> dict[str, str]:
        """Return what the order has `install` of the image do."""
        (install, *_) = self.document["runcmd"]
        assert install[0] == "/opt/fairlead/current/install"
        return dict(zip(install[1::2], install[2::2], strict=True))

    def _rented(self) -> dict[str, str]:
        """Return the settings of a rented machine's shim."""
        files = {one["path"]: one["content"] for one in self.document["write_files"]}
        lines = files["/etc/fairlead/rented.env"].splitlines()
        return dict(line.split("=", 1) for line in lines)

    def _users(self) -> Path:
        """Write this host's users, with the tunnel user also by the name that nodes give it."""
        make_tunnel_user()
        _SOCKETS.mkdir(exist_ok=True)
        known, ours = Path("/etc/passwd").read_text(), pwd.getpwnam(TUNNEL_USER)
        line = f"{_NODE_USER}:x:{ours.pw_uid}:{ours.pw_gid}::{ours.pw_dir}:{ours.pw_shell}\n"
        file = self._folder / "passwd"
        file.write_text(known + line)
        return file

    def _programs(self) -> Path:
        """Write a `systemctl` whose `reload ssh` reloads the sshd of this machine."""
        folder = self._folder / "bin"
        folder.mkdir()
        program = folder / "systemctl"
        pid = self._folder / "ssh/sshd.pid"
        program.write_text(f'#!/bin/sh\n[ "$1" = reload ] && kill -HUP "$(cat {pid})"\n')
        program.chmod(0o755)
        return folder


class CloudComputers:
    """All that are on, by the ids of their cloud, which gives its machines the addresses 1, 2, … of
    the network `public`."""

    def __init__(self, folder: Path) -> None:
        self.running: dict[str, CloudComputer] = {}
        self._switch = Switch()
        self._switch.build()
        self.public = self._switch.network
        self._count = 0
        self._folder = folder

    def follow(self, machines: Mapping[str, tuple[str, str]]) -> None:
        """Turn on those of these machines that are not, and end the others. `machines`: address and
        user-data by id."""
        for name in self.running.keys() - machines.keys():
            self.running.pop(name).close()
        for name in machines.keys() - self.running.keys():
            self._count += 1
            # Ids of clouds are long, and paths of sockets have 107 bytes.
            folder = self._folder / str(self._count)
            address, user_data = machines[name]
            namespace, ours = self._switch.connect(self._count)
            assert address == ours, f"the cloud tells {address}"
            computer = CloudComputer(folder, namespace, address, user_data)
            self.running[name] = computer
            computer.start()

    def close(self) -> None:
        self.follow({})
        self._switch.remove()
