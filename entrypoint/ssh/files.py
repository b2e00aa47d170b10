"""sftp and scp: asyncssh's file server, relative to the visitor's home; new files belong to the
visitor.

The server itself may be root. What a visitor makes under another name belongs to that user, as with
an own process. Reading is not limited: a user who may log in here may log in as root.
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
        """Send the exit status 0: scp clients treat a channel without one as a failure."""
        # asyncssh raises it where the visitor has closed the channel.
        with contextlib.suppress(OSError):
            self.channel.exit(0)

    @contextlib.contextmanager
    def _owning(self, path: bytes) -> Any:
        """Give what is made at `path` within this block to the visitor."""
        mapped = self.map_path(path)
        is_new = self._login.change and not os.path.lexists(mapped)
        yield
        # `lexists` and no `exists`: what was made may be a link that leads nowhere.
        if is_new and os.path.lexists(mapped):
            os.chown(
                mapped, self._login.identity.uid, self._login.identity.gid, follow_symlinks=False
            )
