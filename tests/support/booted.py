"""A machine that boots: a stock Debian with its own systemd, sshd and network.

systemd-nspawn runs it. Nothing limits cgroups there and no Docker engine starts: jobs are plain
processes. Its disk is a layer over a shared image, so that each test session has a fresh one.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.daemons import Daemon, run
from tests.support.images import debian_archive
from tests.support.machines import Switch
from tests.support.waiting import LONG, wait_until

PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "openssh-server", "openssh-client"),
    *("nftables", "iptables", "iproute2", "sudo"),
)
_HIERARCHIES = ("systemd", "unified", "")
"""Where cgroups are mounted below /sys/fs/cgroup: both versions, or the second alone."""
_BOOT = (
    'for group in $2; do echo $$ > "$group/cgroup.procs"; done && '
    "mount -t tmpfs tmpfs /run && exec systemd-nspawn --quiet --boot --register=no --keep-unit "
    '--capability=all --console=pipe --machine="$0" --directory="$1"'
)
"""nspawn wants a /run without a disk, and cgroups of its own; the network is the one that it is
started in."""


class BootedMachine:
    """`root` is its file system as this process sees it. `host_key` is what a client should pin,
    `address` what it connects to, on port 22."""

    def __init__(self, switch: Switch, number: int, folder: Path, image: Path) -> None:
        self.name = f"booted{number}"
        self._folder = folder
        self.root = folder / "root"
        layers = [folder / "changes", folder / "work"]
        for path in (self.root, *layers):
            path.mkdir(parents=True)
        options = f"lowerdir={image},upperdir={layers[0]},workdir={layers[1]}"
        run(["mount", "-t", "overlay", "overlay", "-o", options, self.root])
        self._namespace, self.address = switch.connect(number)
        (self.root / "etc/hostname").write_text(f"{self.name}\n")
        self.host_key = self._make_host_key()
        self._cgroups = self._make_cgroups()
        network = ["nsenter", f"--net=/run/netns/{self._namespace}"]
        argv: list[str | Path] = [
            *network,
            "unshare",
            "--mount",
            "sh",
            "-c",
            _BOOT,
            self.name,
            self.root,
        ]
        argv.append(" ".join(map(str, self._cgroups)))
        self._daemon = Daemon(argv, folder / "boot.log", outlasts_tests=True)

    def start(self) -> None:
        self._daemon.spawn()
        self._daemon.wait_ready(self._is_up, LONG)

    def stop(self) -> None:
        """Orderly, as by its power button."""
        if self._daemon.is_alive():
            if self._is_up():
                self.run("systemctl", "poweroff")
                self._daemon.wait()
            else:
                self._daemon.kill9()

    def close(self) -> None:
        self.stop()
        run(["umount", self.root])
        run(["ip", "netns", "delete", self._namespace])
        for group in self._cgroups:
            for below in sorted(group.rglob("*/"), reverse=True):
                below.rmdir()
            group.rmdir()
        shutil.rmtree(self._folder)

    def run(self, *argv: str) -> str:
        """The output of a command in it, as root. Raises DaemonFailed when it fails."""
        return run([*self._inside(), *argv])

    def attempt(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """The same for a command that may fail; output and errors are in `stdout`."""
        command = [str(part) for part in (*self._inside(), *argv)]
        return subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )

    def authorize(self, public_key: str) -> None:
        """Let root log in by this key, as on most rented machines."""
        folder = self.root / "root/.ssh"
        folder.mkdir(mode=0o700, exist_ok=True)
        with (folder / "authorized_keys").open("a") as keys:
            keys.write(f"{public_key.strip()}\n")

    def _make_host_key(self) -> str:
        """The image's keys are known to whoever has the image."""
        folder = self.root / "etc/ssh"
        for key in folder.glob("ssh_host_*"):
            key.unlink()
        private = folder / "ssh_host_ed25519_key"
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", private])
        return private.with_suffix(".pub").read_text().strip()

    def _make_cgroups(self) -> list[Path]:
        """Another session's machine would share them with this one."""
        made = []
        for name in _HIERARCHIES:
            hierarchy = Path("/sys/fs/cgroup") / name
            if (hierarchy / "cgroup.procs").exists():
                made.append(hierarchy / f"{self.name}-{self._namespace}")
                made[-1].mkdir()
        return made

    def _inside(self) -> list[str | Path]:
        leader = self._leader()
        assert leader is not None, f"{self.name} does not run"
        places = "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        clean = ("env", "-i", places, "HOME=/root", "LC_ALL=C.UTF-8")
        return ["nsenter", "--all", "--target", str(leader), *clean]

    def _leader(self) -> int | None:
        """The pid of its systemd. While it is being set up, nspawn has other children."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._daemon.pid).children()
            if len(children) == 1 and children[0].name() == "systemd":
                return int(children[0].pid)
        return None

    def _is_up(self) -> bool:
        if self._leader() is None:
            return False
        state = self.attempt("systemctl", "is-system-running").stdout.strip()
        return state in ("running", "degraded")


def booted_image(images: Path, *more: str) -> Path:
    """The machine's root, with more packages, as a folder that is only read."""
    images.mkdir(parents=True, exist_ok=True)
    archive = debian_archive("bookworm", *PACKAGES, *more)
    root = images / "-".join(("booted", *more))
    if not root.exists():
        fresh = images / f".{root.name}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        run(["tar", "-x", "--numeric-owner", "-C", fresh, "-f", archive])
        fresh.rename(root)
    return root


@contextmanager
def booted_machines(folder: Path, images: Path, count: int) -> Iterator[list[BootedMachine]]:
    image = booted_image(images)
    switch = Switch()
    switch.build()
    made: list[BootedMachine] = []
    try:
        for number in range(1, count + 1):
            made.append(BootedMachine(switch, number, folder / f"b{number}", image))
            made[-1].start()
        yield made
    finally:
        for machine in made:
            machine.close()
        switch.remove()


def wait_for_unit(machine: BootedMachine, unit: str, state: str = "active") -> None:
    def reached() -> bool:
        return machine.attempt("systemctl", "is-active", unit).stdout.strip() == state

    wait_until(reached, what=f"{unit} to be {state}")


def files_of(machine: BootedMachine) -> dict[str, str]:
    """Path to mode, size and target of each file, but logs, caches and data of jobs."""
    apart = ("/var/log/*", "/var/lib/systemd/*", "/var/lib/fairlead/*", "/etc/*-", "/tmp/*")
    unimportant = [word for pattern in apart for word in ("-not", "-path", pattern)]
    wanted = ("-xdev", "-not", "-type", "d", *unimportant)
    shown = machine.run("find", "/", *wanted, "-printf", r"%p\t%m %s %l\n")
    return dict(line.split("\t", 1) for line in shown.splitlines())
