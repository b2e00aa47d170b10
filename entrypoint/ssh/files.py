"""sftp and scp: asyncssh's server of files, seen from the visitor's home and owned by the visitor.

The server itself may be root; what a visitor makes under another name belongs to that user, as with
a process of its own. (Reading is not narrowed: who may log in here may log in as root.)
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import asyncssh

from entrypoint.ssh.logins import Login


class Files(asyncssh.SFTPServer):
    def __init__(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        super().__init__(chan)
        login = chan.get_extra_info("login")
        assert isinstance(login, Login)
        self._login = login

    def map_path(self, path: bytes) -> bytes:
        return os.path.join(os.fsencode(self._login.home), path)

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> object:
        with self._owning(path):
            return super().open(path, pflags, attrs)

    def open56(
        self, path: bytes, desired_access: int, flags: int, attrs: asyncssh.SFTPAttrs
    ) -> object:
        with self._owning(path):
            return super().open56(path, desired_access, flags, attrs)

    def mkdir(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> Any:
        with self._owning(path):
            return super().mkdir(path, attrs)

    def symlink(self, oldpath: bytes, newpath: bytes) -> Any:
        with self._owning(newpath):
            return super().symlink(oldpath, newpath)

    def exit(self) -> None:
        """Clients of scp take a channel without an exit status for a failure."""
        with contextlib.suppress(OSError):
            self.channel.exit(0)

    @contextlib.contextmanager
    def _owning(self, path: bytes) -> Any:
        """What is made meanwhile at `path` becomes the visitor's."""
        mapped = self.map_path(path)
        is_new = self._login.change and not os.path.lexists(mapped)
        yield
        if is_new and os.path.lexists(mapped):
            os.chown(
                mapped, self._login.identity.uid, self._login.identity.gid, follow_symlinks=False
            )
