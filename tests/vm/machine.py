"""A virtual machine in qemu: its disk is a layer over an image, its only way in is SSH.

Nothing but its sshd is forwarded, to a port of 127.0.0.1, and it reaches nothing of this machine.
Machines of one test session share a second network, 10.77.0.0/24, by which gangs speak.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from socket import create_connection

from tests.support.daemons import Daemon, DaemonFailed, run
from tests.support.ssh_daemon import free_port
from tests.support.waiting import wait_until

CLUSTER = "10.77.0.0/24"
BOOT_SECONDS = 1800.0
"""For an emulated processor on a machine that has other work."""
_KVM_SECONDS = 30.0
_NETWORK = """\
version: 2
ethernets:
  outside: {{match: {{macaddress: "52:54:00:77:01:{number:02x}"}}, dhcp4: true}}
  cluster:
    match: {{macaddress: "52:54:00:77:02:{number:02x}"}}
    addresses: [10.77.0.{number}/24]
"""
_ADMIN = """\
#cloud-config
users:
  - name: admin
    shell: /bin/bash
    sudo: ALL=(ALL) NOPASSWD:ALL
    ssh_authorized_keys: [{key}]
"""
_PRIVILEGED = """\
write_files:
  - path: /etc/fairlead/shim.env
    content: |
      FAIRLEAD_SHIM_OPTIONS=--allow-privileged
"""


def accelerator(kernels: Path) -> str:
    """`kvm` where a kernel boots by it: some hosts have the device, and no kernel comes up."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    with tempfile.TemporaryDirectory() as folder:
        console = Path(folder) / "console"
        argv: list[str | Path] = ["qemu-system-x86_64", "-accel", "kvm", "-m", "512", "-nodefaults"]
        argv += ["-display", "none", "-no-reboot", "-kernel", kernels / "vmlinuz"]
        argv += ["-serial", f"file:{console}", "-append", "console=ttyS0 panic=-1"]
        probe = Daemon(argv, Path(folder) / "qemu.log")
        probe.spawn()
        try:
            wait_until(
                lambda: not probe.is_alive() or "Linux version" in _text(console), _KVM_SECONDS
            )
        except TimeoutError:
            return "tcg"
        finally:
            probe.kill9()
        return "kvm" if "Linux version" in _text(console) else "tcg"


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


def admin_data(public_key: str) -> str:
    """An operator's own user-data: a login."""
    return _ADMIN.format(key=public_key.strip())


def node_data(public_key: str) -> str:
    """The same for a node: its jobs may be privileged."""
    return admin_data(public_key) + _PRIVILEGED


def hardware(accel: str, disk: Path, console: Path, memory: int = 1536) -> list[str | Path]:
    """Return the command line of a machine that has no network yet; `memory` in MiB."""
    argv: list[str | Path] = ["qemu-system-x86_64", "-nodefaults", "-display", "none"]
    # With a thread for each of them (QEMU 7.2), two emulated processors were once found waiting for
    # each other for good, at the first container of a machine.
    argv += ["-machine", "pc", "-accel", f"{accel},thread=single" if accel == "tcg" else accel]
    argv += ["-cpu", "max", "-smp", "2", "-m", str(memory), "-serial", f"file:{console}"]
    argv += ["-drive", f"file={disk},if=virtio,format=qcow2,cache=unsafe"]
    argv += ["-object", "rng-random,id=rng,filename=/dev/urandom"]
    return [*argv, "-device", "virtio-rng,rng=rng"]


class VirtualMachine:
    """`number` is its place in the cluster's network. `identity` is the admin's private key."""

    def __init__(
        self, folder: Path, image: Path, accel: str, *, number: int, cluster: int, identity: Path
    ) -> None:
        folder.mkdir(parents=True)
        self.name = f"vm{number}"
        self.port = free_port()
        self.cluster_address = f"10.77.0.{number}"
        self.console = folder / "console.log"
        self._folder = folder
        self._number = number
        self._identity = identity
        disk = folder / "disk.qcow2"
        run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", image, disk, "16G"])
        forward = f"hostfwd=tcp:127.0.0.1:{self.port}-:22"
        argv = hardware(accel, disk, self.console)
        argv += ["-drive", f"file={folder}/seed.img,if=virtio,format=raw,readonly=on"]
        argv += ["-netdev", f"user,id=outside,restrict=on,{forward}"]
        argv += ["-device", f"virtio-net,netdev=outside,mac={self._mac(1)}"]
        shared = f"mcast=230.0.0.77:{cluster},localaddr=127.0.0.1"
        argv += ["-netdev", f"socket,id=cluster,{shared}"]
        argv += ["-device", f"virtio-net,netdev=cluster,mac={self._mac(2)}"]
        self._daemon = Daemon(argv, folder / "qemu.log", outlasts_tests=True)

    def boot(self, user_data: str) -> None:
        """Turn it on for the first time; return at once."""
        files = {
            "user-data": user_data,
            "meta-data": f"instance-id: {self.name}\nlocal-hostname: {self.name}\n",
            "network": _NETWORK.format(number=self._number),
        }
        for name, content in files.items():
            (self._folder / name).write_text(content)
        where = self._folder
        network: list[str | Path] = ["--network-config", where / "network"]
        run(
            [
                "cloud-localds",
                *network,
                where / "seed.img",
                where / "user-data",
                where / "meta-data",
            ]
        )
        self._daemon.spawn()

    def wait_for_ssh(self) -> None:
        try:
            wait_until(lambda: not self._daemon.is_alive() or self._greets(), BOOT_SECONDS)
        except TimeoutError:
            raise DaemonFailed(f"{self.name} has no sshd:\n{self.tail()}") from None
        assert self._daemon.is_alive(), self._daemon.tail()

    def wait_for_boot(self) -> None:
        """sshd answers and cloud-init has come to its end."""
        self.wait_for_ssh()
        wait_until(self._lets_in, BOOT_SECONDS, f"{self.name} to let its admin in")
        self.attempt("cloud-init", "status", "--wait")

    def run(self, *argv: str, stdin: bytes | None = None) -> str:
        """The output of a command in it, as root. Raises DaemonFailed when it fails."""
        return run(self._ssh(argv), stdin=stdin)

    def attempt(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """The same for a command that may fail; output and errors are in `stdout`."""
        return subprocess.run(
            [str(part) for part in self._ssh(argv)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BOOT_SECONDS,
            check=False,
        )

    def close(self) -> None:
        """As when its power is cut."""
        self._daemon.kill9()

    def tail(self) -> str:
        return "\n".join(_text(self.console).splitlines()[-60:])

    @property
    def host_key(self) -> str:
        """As it tells its admin."""
        return self.run("cat", "/etc/ssh/ssh_host_ed25519_key.pub").strip()

    def _mac(self, network: int) -> str:
        return f"52:54:00:77:{network:02x}:{self._number:02x}"

    def _ssh(self, argv: tuple[str, ...]) -> list[str | Path]:
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
        options += ["BatchMode=yes", "ConnectTimeout=60", "ControlMaster=auto"]
        options += [f"ControlPath={self._folder}/mux", "ControlPersist=60"]
        words = [word for option in options for word in ("-o", option)]
        login: list[str | Path] = ["-i", self._identity, "-p", str(self.port), "admin@127.0.0.1"]
        return ["ssh", *words, *login, "sudo", *map(shlex.quote, argv)]

    def _lets_in(self) -> bool:
        return self.attempt("true").returncode == 0

    def _greets(self) -> bool:
        with suppress(OSError), create_connection(("127.0.0.1", self.port), 5) as client:
            return client.recv(4) == b"SSH-"
        return False
