"""Virtual machines of the controller's own host. Each has a folder, with a disk that is a layer
over an image, and a QEMU process that outlives the controller.

`FOLDER/ID` belongs to the controller: `machine.json` is the record, and `lock` is held by the QEMU
process for as long as it lives, because it inherits the locked file. So neither a pid file that is
not yet written nor a pid that was used again can mislead: who has `lock` open is the machine.
`ID/run` belongs to the account that QEMU runs as: disk, console and control socket.

Everything here blocks; call it in a thread, one call at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from common.files.durable import sync_folder, write_durably
from controller.provider_config.qemu import QemuProvider

_MIB = 1 << 20
_PROGRAM_SECONDS = 120.0
_END_SECONDS = 5.0
_MAX_CONSOLE = 4 * _MIB
_CONSOLE_TAIL = 64 << 10
_ENDED_KEPT_SECONDS = 86400.0
"""How long a machine that nobody ended, and that is off, keeps its disk."""
_UNFINISHED, _REMOVED = ".new-", ".gone-"
_FIRST_SECTOR = bytes([0xB0, 0x10, 0xE6, 0xF4, 0xF4]).ljust(510, b"\0") + b"\x55\xaa"
"""A disk's first sector that writes 16 to port 0xf4 and halts: the smallest thing that boots."""
_BOOTED = 33
"""How QEMU ends then: 2 * 16 + 1 (isa-debug-exit)."""
_SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
_KVM_SECONDS = 5.0
_KVM_FACTOR = 10.0


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a machine. `memory` and `disk` in bytes; `port` of 127.0.0.1 leads to its
    sshd."""

    id: str
    machine_id: str
    installation: str
    name: str
    fleet: str
    instance_type: str
    cpu: int
    memory: int
    disk: int
    created_at: float
    port: int = 0


class _ImageInfo(msgspec.Struct, frozen=True, rename="kebab"):
    """What qemu-img tells of an image."""

    virtual_size: int


_RECORD = msgspec.json.Decoder(Guest)


class StartFailed(Exception):
    """The machine could not be made; nothing of it is left. The message is a sentence."""


class ImageUnreadable(StartFailed):
    """No machine can be made of the image."""


class Guests:
    """The machines of one folder."""

    def __init__(self, settings: QemuProvider) -> None:
        self._settings = settings
        self._account = None if settings.user is None else pwd.getpwnam(settings.user)
        self._accelerator = settings.accelerator

    # -- what is there ------------------------------------------------------------------------

    def all(self) -> list[Guest]:
        """Return every machine whose folder is whole, running or not."""
        return [one for name in self._names() if (one := self.find(name)) is not None]

    def find(self, guest_id: str) -> Guest | None:
        if not guest_id.isalnum():
            return None
        try:
            content = (self._folder(guest_id) / "machine.json").read_bytes()
        except FileNotFoundError:
            return None
        try:
            return _RECORD.decode(content)
        except msgspec.MsgspecError as error:
            # None would say that there is no machine, and its disk and process may be there.
            raise OSError(f"{guest_id}/machine.json is damaged: {error}") from None

    def was_started(self, guest_id: str) -> bool:
        return (self._folder(guest_id) / "started").exists()

    def is_alive(self, guest_id: str) -> bool:
        """Return whether its process runs, also if it has only just been started."""
        try:
            fd = os.open(self._folder(guest_id) / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            # QEMU inherited the lock, which ends with its last descriptor (flock(2)).
            return True
        finally:
            os.close(fd)
        return False

    def control_socket(self, guest_id: str) -> Path:
        return self._folder(guest_id) / "run/control.sock"

    def complaint(self, guest_id: str) -> str:
        """Return the last line that its process wrote about itself."""
        lines = _tail(self._folder(guest_id) / "qemu.log", 4096).strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def console(self, guest_id: str) -> str | None:
        """Return the latest output of the machine's console; None: there is none."""
        return _tail(self._folder(guest_id) / "run/console.log", _CONSOLE_TAIL) or None

    # -- making one ---------------------------------------------------------------------------

    def make(self, guest: Guest, user_data: str) -> Guest:
        """Make the machine's folder and disk, unless they are there; return its record. Raises
        StartFailed."""
        if (known := self.find(guest.id)) is not None:
            return known
        if (size := self.image_size()) > guest.disk:
            # The end of its file system would be missing, and it would never boot.
            raise StartFailed(f"the image has a disk of {size} bytes, more than its {guest.disk}")
        self._make_folder()
        unfinished = self._settings.folder / f"{_UNFINISHED}{guest.id}"
        shutil.rmtree(unfinished, ignore_errors=True)
        made = msgspec.structs.replace(guest, port=_free_port())
        try:
            self._fill(unfinished, made, user_data)
        except (OSError, subprocess.SubprocessError) as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise StartFailed(f"the machine's disk cannot be made: {_words(error)}") from None
        # From here on the machine exists: a folder is there as a whole or not at all.
        unfinished.rename(self._folder(guest.id))
        sync_folder(self._settings.folder)
        return made

    def image_size(self) -> int:
        """Return the bytes of the image's disk, as the account of the machines reads it. Raises
        StartFailed."""
        argv = [self._settings.programs.img, "info", "-U", "-f", "qcow2", "--output=json"]
        try:
            output = _run([*argv, str(self._settings.image)], **self._as_account())
            size: int = msgspec.json.decode(output, type=_ImageInfo).virtual_size
        except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
            image = self._settings.image
            raise ImageUnreadable(f"the image {image} cannot be read: {_words(error)}") from None
        return size

    def _fill(self, folder: Path, guest: Guest, user_data: str) -> None:
        programs, run = self._settings.programs, folder / "run"
        _make_passable(folder)
        run.mkdir(mode=0o700)
        seed = {
            "user-data": user_data,
            "meta-data": f"instance-id: {guest.id}\nlocal-hostname: {guest.name}\n",
        }
        for name, content in seed.items():
            _write_secret(folder / name, content)
        image, size = self._settings.image, f"{guest.disk // _MIB}M"
        layer = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(image)]
        _run([programs.img, *layer, str(run / "disk.qcow2"), size])
        iso = ["-quiet", "-output", str(run / "seed.iso"), "-volid", "cidata", "-joliet", "-rock"]
        _run([programs.iso, *iso, *(str(folder / name) for name in seed)])
        for name in seed:
            # They hold the node's secrets, which the machine has in its seed from now on.
            (folder / name).unlink()
        if self._account is not None:
            for path in (run, *run.iterdir()):
                os.chown(path, self._account.pw_uid, self._account.pw_gid)
        (folder / "lock").touch(mode=0o600)
        write_durably(folder / "machine.json", msgspec.json.encode(guest), 0o600)

    def start(self, guest: Guest) -> None:
        """Start the machine's process, unless it runs; it may still end at once. Raises
        StartFailed."""
        folder = self._folder(guest.id)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._spawn(folder, guest, fd)
        except BlockingIOError:
            # The process of an earlier call has the lock: two on one disk would destroy it.
            return
        except (OSError, subprocess.SubprocessError) as error:
            raise StartFailed(f"the machine cannot be started: {_words(error)}") from None
        finally:
            os.close(fd)
        (folder / "started").touch(mode=0o600)

    def _spawn(self, folder: Path, guest: Guest, lock: int) -> None:
        # The shell ends at once, so the machine is no child of a controller that may end first.
        argv = ["/bin/sh", "-c", '"$@" &', "sh", *self._argv(folder / "run", guest)]
        (folder / "run/control.sock").unlink(missing_ok=True)
        with (folder / "qemu.log").open("wb") as log:
            subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                pass_fds=(lock,),
                start_new_session=True,
                timeout=_PROGRAM_SECONDS,
                check=True,
                umask=0o077,
                **self._as_account(),
            )

    def _as_account(self) -> dict[str, Any]:
        if self._account is None:
            return {}
        name, gid = self._account.pw_name, self._account.pw_gid
        # With its groups: that of /dev/kvm is one of them.
        groups = os.getgrouplist(name, gid)
        return {"user": self._account.pw_uid, "group": gid, "extra_groups": groups}

    def _argv(self, run: Path, guest: Guest) -> list[str]:
        accelerator = self._accelerator or "tcg"
        network = f"user,id=net,hostfwd=tcp:127.0.0.1:{guest.port}-:22"
        if not self._settings.is_open:
            # Without it, a guest reaches services on the host's loopback by 10.0.2.2 (qemu(1)).
            network += ",restrict=on"
        disk = f"file={run}/disk.qcow2,if=virtio,format=qcow2"
        seed = f"file={run}/seed.iso,if=virtio,format=raw,readonly=on"
        console = f"file,id=console,path={run}/console.log,append=on"
        return [
            *(self._settings.programs.system, "-nodefaults", "-display", "none"),
            *("-name", guest.name, "-machine", "pc", "-accel", accelerator),
            *("-cpu", "host" if accelerator == "kvm" else "max"),
            *("-smp", str(guest.cpu), "-m", str(guest.memory // _MIB)),
            *("-drive", disk, "-drive", seed),
            *("-netdev", network, "-device", "virtio-net,netdev=net"),
            *("-object", "rng-random,id=rng,filename=/dev/urandom"),
            *("-device", "virtio-rng,rng=rng"),
            *("-chardev", console, "-serial", "chardev:console"),
            *("-qmp", f"unix:{run}/control.sock,server=on,wait=off"),
            *("-sandbox", _SANDBOX),
        ]

    def choose_accelerator(self) -> str:
        """Return `kvm` where a disk boots by it, else `tcg`; a try at the first call only.

        Some hosts have the device, and what boots by it takes a hundred times as long.
        """
        if self._accelerator is None:
            self._accelerator = "kvm" if self._boots_by_kvm() else "tcg"
        return self._accelerator

    def _boots_by_kvm(self) -> bool:
        if not os.path.exists("/dev/kvm"):
            return False
        self._make_folder()
        sector = self._settings.folder / ".first-sector"
        sector.write_bytes(_FIRST_SECTOR)
        sector.chmod(0o644)
        emulated = self._boot("tcg", sector, _PROGRAM_SECONDS)
        limit = max(_KVM_SECONDS, _KVM_FACTOR * (emulated or 0.0))
        return self._boot("kvm", sector, limit) is not None

    def _boot(self, accelerator: str, sector: Path, limit: float) -> float | None:
        """Return the seconds that it took; None: it did not boot by then."""
        argv = [self._settings.programs.system, "-accel", accelerator, "-m", "64", "-nodefaults"]
        argv += ["-display", "none", "-no-reboot", "-device", "isa-debug-exit,iobase=0xf4"]
        argv += ["-drive", f"file={sector},format=raw,if=ide,readonly=off,snapshot=on"]
        begun = time.monotonic()
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            ended = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit,
                check=False,
                **self._as_account(),
            )
            if ended.returncode == _BOOTED:
                return time.monotonic() - begun
        return None

    # -- ending one ---------------------------------------------------------------------------

    def end(self, guest_id: str) -> bool:
        """End the machine's process and remove its folder; True: nothing of it is there any
        more."""
        if not guest_id.isalnum() or not self._folder(guest_id).exists():
            return True
        for pid in _holders(self._folder(guest_id) / "lock"):
            _kill(pid, self._folder(guest_id) / "lock")
        if self.is_alive(guest_id):
            return False
        self._remove(guest_id)
        return True

    def _remove(self, guest_id: str) -> None:
        removed = self._settings.folder / f"{_REMOVED}{guest_id}"
        shutil.rmtree(removed, ignore_errors=True)
        # At once, so that a cut removal leaves no half of a machine.
        self._folder(guest_id).rename(removed)
        shutil.rmtree(removed, ignore_errors=True)

    def tidy(self, installation: str) -> None:
        """Remove what cut calls have left, and old machines of this installation that are off; cut
        long consoles."""
        for name in _entries(self._settings.folder):
            if name.startswith((_UNFINISHED, _REMOVED)):
                shutil.rmtree(self._settings.folder / name, ignore_errors=True)
        for guest in self.all():
            console = self._folder(guest.id) / "run/console.log"
            with contextlib.suppress(OSError):
                # Its owner is another account, and may have put a link there.
                if console.stat(follow_symlinks=False).st_size > _MAX_CONSOLE:
                    _truncate(console)
            if guest.installation == installation and self._is_long_off(guest):
                self._remove(guest.id)

    def _is_long_off(self, guest: Guest) -> bool:
        if not self.was_started(guest.id) or self.is_alive(guest.id):
            return False
        with contextlib.suppress(OSError):
            used = (self._folder(guest.id) / "run/disk.qcow2").stat(follow_symlinks=False).st_mtime
            return time.time() - max(used, guest.created_at) > _ENDED_KEPT_SECONDS
        return False

    def _make_folder(self) -> None:
        if not self._settings.folder.exists():
            _make_passable(self._settings.folder)

    def _names(self) -> Iterator[str]:
        return (one for one in _entries(self._settings.folder) if not one.startswith("."))

    def _folder(self, guest_id: str) -> Path:
        return self._settings.folder / guest_id


def _make_passable(folder: Path) -> None:
    """Make a folder through which another account gets to its own: a daemon's umask takes that
    from the mode of mkdir."""
    folder.mkdir(parents=True, mode=0o711)
    folder.chmod(0o711)


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _write_secret(path: Path, content: str) -> None:
    # Private from the first moment: a mode that is set later leaves time to open it.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(content)


def _truncate(path: Path) -> None:
    # The account of QEMU owns the folder: a link there must not lead to another file.
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC))


def _tail(path: Path, size: int) -> str:
    try:
        # The account of QEMU may have put a link in its place, or a pipe that blocks (fifo(7)).
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as file:
        file.seek(max(0, os.fstat(fd).st_size - size))
        return file.read(size).decode(errors="replace")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _run(argv: Sequence[str], **account: Any) -> bytes:
    ended = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_PROGRAM_SECONDS,
        check=True,
        umask=0o077,
        **account,
    )
    return bytes(ended.stdout)


def _words(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else f"status {error.returncode}"
        return f"{error.cmd[0]} failed: {last}"
    return str(error)


def _holders(file: Path) -> list[int]:
    """Return the processes that have the file open, without this one."""
    wanted = file.stat()
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid() and _has_open(int(name), wanted):
            found.append(int(name))
    return found


def _has_open(pid: int, wanted: os.stat_result) -> bool:
    # It has ended, or closed the file, meanwhile; or it is another user's (proc_pid_fd(5)).
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found = os.stat(f"/proc/{pid}/fd/{fd}")
                if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                    return True
    return False


def _kill(pid: int, lock: Path) -> None:
    """End the process and wait for it, if it still has the lock open."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        # A pidfd stays with its process, and a pid is given away again (pidfd_open(2)).
        return
    try:
        # Only a look after the pidfd is open tells whose it is: until then the pid can be reused.
        if _has_open(pid, lock.stat()):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(_END_SECONDS * 1000)
    except ProcessLookupError:
        # It ended meanwhile: ESRCH of pidfd_open(2) or pidfd_send_signal(2).
        return
    finally:
        os.close(fd)
