"""The kernel's part of volumes: open a path safely, mount, unmount.

A path below which users may write can change between a check and its use. So a path is opened once,
beneath the folder that the operator allows, and what was opened is mounted, even if the path has
changed. All of this blocks: call it in a thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Protocol

from shim.errors import VolumeError
from shim.files import safe_files

_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18
_UMOUNT_NOFOLLOW = 8
_MNT_DETACH = 2
_MOUNT_SECONDS = 60
_FILESYSTEMS = ("ext2", "ext3", "ext4", "xfs", "btrfs")
_ESCAPED = re.compile(r"\\([0-7]{3})")
_libc = ctypes.CDLL(None, use_errno=True)


class Mounter(Protocol):
    """Mounts volumes. Raises VolumeError for the user's errors, OSError for the node's."""

    def bind(self, allowed: Path, relative: str, target: Path) -> bool:
        """Mount `relative` beneath `allowed` at `target`, which is made; False when nothing is
        there.

        A symbolic link that leads out of `allowed` is refused.
        """

    def device(self, path: Path, target: Path) -> bool:
        """Mount the filesystem of the block device; False when there is no such device."""

    def release(self, folder: Path) -> None:
        """Unmount everything below `folder`, and remove it. It never removes a file."""


class KernelMounter:
    """The real one. Everything mounted below `ours` was mounted by a shim of this node."""

    def __init__(self, ours: Path) -> None:
        self._ours = ours

    def bind(self, allowed: Path, relative: str, target: Path) -> bool:
        try:
            fd = safe_files.open_path(allowed, relative)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except safe_files.UnsafeFile:
            raise VolumeError(f"{allowed / relative} leads out of {allowed}") from None
        try:
            mode = os.fstat(fd).st_mode
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                raise VolumeError(f"{allowed / relative} is neither a folder nor a regular file")
            self._refuse_ours(fd, allowed / relative)
            _make_mount_point(target, is_folder=stat.S_ISDIR(mode))
            # By its descriptor: since the check, the path may lead elsewhere.
            _mount(f"/proc/self/fd/{fd}", target, _MS_BIND | _MS_REC)
            _keep_to_ourselves(target)
        finally:
            os.close(fd)
        return True

    def device(self, path: Path, target: Path) -> bool:
        try:
            device = path.stat()
        except FileNotFoundError:
            return False
        if not stat.S_ISBLK(device.st_mode):
            raise VolumeError(f"{path} is not a block device")
        self._refuse_used(path, device.st_rdev)
        filesystem = _filesystem_of(path)
        _make_mount_point(target, is_folder=True)
        # A user has made this filesystem: its setuid programs and devices must have no effect.
        options = "nosuid,nodev"
        _run(["mount", "-t", filesystem, "-o", options, "--", str(path), str(target)], path)
        _keep_to_ourselves(target)
        return True

    def release(self, folder: Path) -> None:
        if not folder.exists():
            return
        # The last one first: it may lie in an earlier one, or on top of it.
        for point in reversed(mounts_below(folder)):
            _unmount(point)
        for point in sorted(folder.iterdir()):
            if point.is_dir() and not point.is_symlink():
                point.rmdir()
            else:
                _remove_placeholder(point)
        folder.rmdir()

    def _refuse_ours(self, fd: int, shown: Path) -> None:
        """Refuse records and other tasks' volumes, whatever prefix the operator chose."""
        real = Path(os.readlink(f"/proc/self/fd/{fd}"))
        data = self._ours.parent.resolve()
        if real.is_relative_to(data) or data.is_relative_to(real):
            raise VolumeError(f"{shown} contains the node's own records")

    def _refuse_used(self, path: Path, number: int) -> None:
        """Refuse a device that the operator has mounted; one that a shim mounted may serve several
        tasks."""
        own = f"{self._ours.resolve()}/"
        device = f"{os.major(number)}:{os.minor(number)}"
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields = line.split(" ")
            point = _plain(fields[4])
            if fields[2] == device and not point.startswith(own):
                raise VolumeError(f"{path} is mounted on the node itself, at {point}")


def mounts_below(folder: Path) -> list[Path]:
    """Return the mount points below `folder`, in the order in which they were made."""
    start = f"{folder.resolve()}/"
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = (_plain(line.split(" ")[4]) for line in lines)
    return [Path(point) for point in points if point.startswith(start)]


def _plain(text: str) -> str:
    """Return the path without octal escapes of blanks and the like."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def _make_mount_point(target: Path, *, is_folder: bool) -> None:
    """Make the mount's target. A mount that a crash left there is removed first."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Mounts at one place are stacked, and each crash can have left another.
    while target in mounts_below(target.parent):
        _unmount(target)
    if is_folder:
        target.mkdir(exist_ok=True)
    else:
        # A file can be mounted on a file alone (mount(2), ENOTDIR).
        target.touch()


def _remove_placeholder(point: Path) -> None:
    if point.stat().st_size:
        raise OSError(errno.EBUSY, "is not the empty file that was made there", str(point))
    point.unlink()


def _filesystem_of(path: Path) -> str:
    # `-p` reads the device itself: blkid's cache may be of another content (blkid(8)).
    done = _command(["blkid", "-p", "-o", "value", "-s", "TYPE", "--", str(path)], path)
    found = done.stdout.strip()
    if not found:
        raise VolumeError(f"{path} has no filesystem; make one on it first")
    if found not in _FILESYSTEMS:
        raise VolumeError(f"{path} has {found}, not one of {', '.join(_FILESYSTEMS)}")
    return found


def _run(argv: list[str], path: Path) -> None:
    done = _command(argv, path)
    if done.returncode:
        words = " ".join(done.stderr.split())[:300] or f"{argv[0]} ended with {done.returncode}"
        raise VolumeError(f"{path} cannot be mounted: {words}")


def _command(argv: list[str], path: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MOUNT_SECONDS,
            check=False,
        )
    # A network device that is gone holds mount(8) in the kernel until its driver gives up.
    except subprocess.TimeoutExpired:
        raise VolumeError(f"{path} does not answer: {argv[0]} took too long") from None


def _keep_to_ourselves(target: Path) -> None:
    """Make the mount private: otherwise to unmount it here would unmount its source too."""
    _mount("none", target, _MS_PRIVATE | _MS_REC)


def _mount(source: str, target: Path, flags: int) -> None:
    result = _libc.mount(source.encode(), os.fsencode(target), None, ctypes.c_ulong(flags), None)
    if result < 0:
        raise _error("mount", target)


def _unmount(target: Path) -> None:
    """Unmount at once, also while a process has a file open there."""
    # Once more: a crash may have come after the mount and before it was made private.
    with contextlib.suppress(OSError):
        _keep_to_ourselves(target)
    if _libc.umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW) < 0:
        code = ctypes.get_errno()
        # EINVAL: it is no mount point any more (umount(2)); it may have gone with another one.
        if code not in (errno.EINVAL, errno.ENOENT):
            raise _error("unmount", target)


def _error(what: str, target: Path) -> OSError:
    code = ctypes.get_errno()
    # EPERM: without CAP_SYS_ADMIN nobody mounts (mount(2)).
    if code == errno.EPERM:
        raise VolumeError("the shim may not mount: volumes need a shim that runs as root")
    return OSError(code, f"cannot {what}: {os.strerror(code)}", str(target))
