"""Opens files that a hostile job may have replaced.

The job can be root in its container and owns the folder that it shares with the shim. So its files
are opened beneath that folder, through no symbolic link, without waiting on a pipe, and only if
they are regular files. The amount read is limited.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
from pathlib import Path

# glibc has no wrapper for openat2(2); this is its number on amd64 and arm64.
_OPENAT2 = 437
_RESOLVE_NO_XDEV = 0x01
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_RESOLVE = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_XDEV
_MAX_ENTRIES = 1 << 16
_MAX_RENAMES = 64
"""The kernel asks to try again when a folder on the path was moved meanwhile."""


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_libc = ctypes.CDLL(None, use_errno=True)


class UnsafeFile(OSError):
    """The path is not a regular file of the job's own folder."""


def is_supported() -> bool:
    """Return whether this kernel (5.6 or newer, not restricted by a sandbox) can open files in this
    way."""
    try:
        os.close(open_beneath(Path("/"), "proc", os.O_DIRECTORY))
    except UnsafeFile:
        # /proc is a mount of its own, so RESOLVE_NO_XDEV refuses it: the call works.
        return True
    except OSError:
        return False
    return True


def open_beneath(folder: Path, name: str, extra_flags: int = 0) -> int:
    """Return a descriptor of `folder/name`, opened for reading. Raises FileNotFoundError,
    UnsafeFile."""
    base = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        # Without O_NONBLOCK, the open of a FIFO waits until the job opens its other end (fifo(7)).
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | extra_flags
        how = _OpenHow(flags, 0, _RESOLVE)
        fd = int(
            _libc.syscall(_OPENAT2, base, os.fsencode(name), ctypes.byref(how), ctypes.sizeof(how))
        )
        if fd < 0:
            raise _as_error(ctypes.get_errno(), name)
        return fd
    finally:
        os.close(base)


def open_path(folder: Path, name: str) -> int:
    """Return a descriptor (O_PATH) of `folder/name`. Links may lead to paths beneath `folder`, not
    out of it.

    Raises FileNotFoundError, UnsafeFile.
    """
    base = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # RESOLVE_BENEATH refuses magic links too so far, and may not for ever (openat2(2)).
        how = _OpenHow(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
        for _ in range(_MAX_RENAMES):
            fd = int(
                _libc.syscall(
                    _OPENAT2, base, os.fsencode(name), ctypes.byref(how), ctypes.sizeof(how)
                )
            )
            if fd >= 0:
                return fd
            # EAGAIN: something on the path was renamed meanwhile (openat2(2)).
            if (code := ctypes.get_errno()) != errno.EAGAIN:
                raise _as_error(code, name)
        raise UnsafeFile(errno.EAGAIN, "is being moved about", name)
    finally:
        os.close(base)


def read_link(folder: Path, name: str) -> str:
    """Return where the link `folder/name` leads. Raises FileNotFoundError, UnsafeFile, and OSError
    for what is no link."""
    base = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        # With these two flags, RESOLVE_NO_SYMLINKS opens the last link itself (openat2(2)).
        how = _OpenHow(os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0, _RESOLVE)
        fd = int(
            _libc.syscall(_OPENAT2, base, os.fsencode(name), ctypes.byref(how), ctypes.sizeof(how))
        )
        if fd < 0:
            raise _as_error(ctypes.get_errno(), name)
    finally:
        os.close(base)
    try:
        # With an empty path it reads the link that the descriptor stands for (readlink(2)).
        return os.readlink("", dir_fd=fd)
    finally:
        os.close(fd)


def open_regular(folder: Path, name: str) -> int:
    """Open as `open_beneath` does, and refuse anything but a regular file."""
    fd = open_beneath(folder, name)
    # Of the descriptor: the name may lead to another file by now.
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise UnsafeFile(errno.EINVAL, "not a regular file", name)
    return fd


def read_small(folder: Path, name: str, limit: int) -> bytes | None:
    """Return the file's bytes; None when there is none, it is unsafe, or it is larger than
    `limit`."""
    try:
        fd = open_regular(folder, name)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        # The job may write meanwhile: the size that fstat(2) tells would be no limit.
        data = file.read(limit + 1)
    return data if len(data) <= limit else None


def replace_file(folder: Path, name: str, data: bytes, mode: int = 0o644, gid: int = -1) -> None:
    """Write `data` to `folder/name`. A link with that name is replaced, not followed. Group -1: the
    folder's group."""
    base = os.open(folder, os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    unfinished = f".{name}.{secrets.token_hex(8)}"
    # O_EXCL refuses a link that the job put there first, also a dangling one (open(2)).
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(unfinished, flags, 0o600, dir_fd=base), "wb") as file:
            file.write(data)
            # In this order: chown(2) may clear bits of the mode, and the umask cuts that of
            # open(2).
            os.fchown(file.fileno(), -1, gid)
            os.fchmod(file.fileno(), mode)
        os.rename(unfinished, name, src_dir_fd=base, dst_dir_fd=base)
    except OSError:
        # There is none to remove where it could not even be made.
        with contextlib.suppress(OSError):
            os.unlink(unfinished, dir_fd=base)
        raise
    finally:
        os.close(base)


def list_names(folder: Path, name: str) -> list[str]:
    """Return the names in a sub-folder of the job's folder; none if it is absent or unsafe.

    Only the first 65536 entries are returned.
    """
    try:
        fd = open_beneath(folder, name, os.O_DIRECTORY)
    except OSError:
        return []
    try:
        names = []
        with os.scandir(fd) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) >= _MAX_ENTRIES:
                    break
        return names
    finally:
        os.close(fd)


def _as_error(code: int, name: str) -> OSError:
    # openat2(2): ELOOP is a link; EXDEV is a way out of the folder or into another mount.
    if code in (errno.ELOOP, errno.EXDEV):
        return UnsafeFile(code, "leads out of the task's folder", name)
    return OSError(code, os.strerror(code), name)
