"""Prepares code: puts repositories and files in their places.

A folder that is not empty is
refused or left as it is, never mixed with a repository. What a failed repository left is removed,
so that the same job can be tried again on the same volume.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from common.threads import to_the_end
from fairlead.wire.job import (
    Files,
    IfFolderExists,
    Repo,
    RepoCredentials,
    SubmitRequest,
    code_changes,
)
from runner.code.archive import Parts
from runner.code.errors import Abandoned, BadArchive
from runner.code.git import Git, check_repo
from runner.code.store import CodeStore
from runner.code.tree import remove, unpack
from runner.errors import CannotStart
from runner.processes.identity import Identity
from runner.processes.launch import make_folder, place_of

_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


class Brought:
    """What was unpacked where, for a job that may start again with other code."""

    def __init__(self) -> None:
        self._folders: dict[str, tuple[int, int]] = {}
        self._names: dict[tuple[str, str], frozenset[Parts]] = {}
        self.left_alone: set[str] = set()
        """Folders that had content before the first start, with `if_exists: skip`."""

    def claim(self, target: str) -> None:
        """Note the folder before something comes into it. Blocking."""
        found = os.stat(target)
        self._folders.setdefault(target, (found.st_dev, found.st_ino))

    def note(self, target: str, blob: str, names: frozenset[Parts]) -> None:
        """Blocking."""
        self.claim(target)
        self._names[target, blob] = names

    @contextmanager
    def opened(self, target: str) -> Iterator[Path]:
        """Yield a path that leads to the folder whatever becomes of its name. Raises CannotStart
        for another folder in its place: a job that is not root could have this process write
        elsewhere."""
        fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            known = self._folders.get(target, (found.st_dev, found.st_ino))
            if known != (found.st_dev, found.st_ino):
                raise CannotStart(f"the job has put another folder in the place of {target!r}")
            yield Path(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)

    def taken(self, target: str, blob: str) -> frozenset[Parts]:
        """Return the names that were unpacked from the blob, and forget them."""
        return self._names.pop((target, blob), frozenset())


class CodePreparer:
    def __init__(
        self,
        store: CodeStore,
        git: Git,
        working_dir: str,
        identity: Identity | None,
        brought: Brought | None = None,
    ) -> None:
        self._brought = brought
        self._store = store
        self._git = git
        self._working_dir = working_dir
        self._identity = identity
        self._owner = None if identity is None else (identity.uid, identity.gid)

    async def prepare(self, request: SubmitRequest) -> None:
        """Prepare the code. Raises CannotStart. If cancelled, it kills what it runs and returns
        when that is gone."""
        for repo in request.job.repos:
            await self._repo(repo, request.repo_credentials.get(repo.path))
        for files in request.job.files:
            await self._files(files)

    async def renew(self, request: SubmitRequest, before: SubmitRequest) -> None:
        """Put the code of `request` in the place of the code of `before`. What else the job has
        made stays. Raises CannotStart."""
        old, new = before.job, request.job
        changes = code_changes((old.repos, old.files), (new.repos, new.files))
        for files in changes.removed:
            await self._remove(files.archive, place_of(files.path, self._working_dir))
        for was, repo in changes.repos:
            target = place_of(repo.path, self._working_dir)
            if self._brought is not None and target in self._brought.left_alone:
                continue
            await self._require_own(target)
            if was.archive is not None:
                await self._remove(was.archive, target)
            if was.diff is not None:
                await self._git.take_back(self._store.path(was.diff), target)
            if repo.archive is not None:
                await self._unpack(repo.archive, target, replace=True)
            if repo.diff is not None:
                await self._git.apply(self._store.path(repo.diff), target)
        for files in changes.files:
            await self._unpack_files(files, place_of(files.path, self._working_dir))

    async def _remove(self, blob: str, target: str) -> None:
        def work() -> None:
            assert self._brought is not None, "a job that starts again notes what it has"
            with self._brought.opened(target) as folder:
                remove(folder, self._brought.taken(target, blob))

        await _in_thread(work, lambda: None, target)

    async def _require_own(self, target: str) -> None:
        """Raise CannotStart if the job has put another folder there: git would change that one."""

        def work() -> None:
            with _opened(self._brought, target):
                pass

        await _in_thread(work, lambda: None, target)

    async def _repo(self, repo: Repo, keys: RepoCredentials | None) -> None:
        if repo.archive is None and (wrong := check_repo(repo)) is not None:
            raise CannotStart(wrong)
        target = place_of(repo.path, self._working_dir)
        if not await asyncio.to_thread(self._claim, repo, target):
            if self._brought is not None:
                self._brought.left_alone.add(target)
            return
        if self._brought is not None:
            await asyncio.to_thread(self._brought.claim, target)
        try:
            if repo.archive is not None:
                await self._unpack(repo.archive, target, replace=False)
            else:
                await self._git.fetch(repo, target, keys)
            if repo.diff is not None:
                await self._git.apply(self._store.path(repo.diff), target)
        except BaseException:
            # Also when the job is stopped: on a volume, the next try would find half of it.
            await asyncio.to_thread(_empty, target)
            raise

    async def _files(self, files: Files) -> None:
        target = place_of(files.path, self._working_dir)
        await asyncio.to_thread(make_folder, target, self._identity, "files")
        await self._unpack_files(files, target)

    async def _unpack_files(self, files: Files, target: str) -> None:
        await self._unpack(files.archive, target, replace=True)
        if files.read_only:
            try:
                await asyncio.to_thread(self._write_protect, target)
            except OSError as error:
                raise CannotStart(f"{target!r} cannot be protected: {error.strerror}") from error

    def _write_protect(self, target: str) -> None:
        with _opened(self._brought, target) as folder:
            _write_protect(str(folder))

    def _claim(self, repo: Repo, target: str) -> bool:
        """Return whether the (empty) folder may be filled."""
        make_folder(target, self._identity, "repos")
        try:
            if not os.listdir(target):
                return True
        except OSError as error:
            raise CannotStart(f"{target!r} cannot be read: {error.strerror}") from error
        if repo.if_exists is IfFolderExists.SKIP:
            return False
        raise CannotStart(
            f"{target!r} is not empty: give the repository another `path`, or `if_exists: skip` to"
            " use what is there"
        )

    async def _unpack(self, blob: str, target: str, *, replace: bool) -> None:
        abandoned = threading.Event()

        def check() -> None:
            if abandoned.is_set():
                raise Abandoned

        def work() -> None:
            with _opened(self._brought, target) as folder:
                names = unpack(
                    self._store.path(blob),
                    folder,
                    owner=self._owner,
                    replace=replace,
                    check=check,
                )
            if self._brought is not None:
                self._brought.note(target, blob, names)

        await _in_thread(work, abandoned.set, target)


def _opened(brought: Brought | None, target: str) -> AbstractContextManager[Path]:
    return nullcontext(Path(target)) if brought is None else brought.opened(target)


async def _in_thread(work: Callable[[], None], abandon: Callable[[], None], target: str) -> None:
    """Run `work` in a thread; if cancelled, end it and wait. Raises CannotStart."""
    try:
        await to_the_end(asyncio.ensure_future(asyncio.to_thread(work)), abandon)
    except BadArchive as error:
        raise CannotStart(f"the archive for {target!r} is refused: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CannotStart(f"there is no space left to unpack into {target!r}") from error
        raise CannotStart(f"cannot unpack into {target!r}: {error.strerror}") from error


def _write_protect(target: str) -> None:
    """Take the right to write from the files. Folders keep it, so that the same job can be tried
    again on the same volume."""
    # With the dot, since fwalk does not enter a link, which an open folder's path in /proc is.
    for _, _, names, folder in os.fwalk(os.path.join(target, ".")):
        for name in names:
            try:
                # On a volume, another job may have put a link or a pipe there meanwhile.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                fd = os.open(name, flags, dir_fd=folder)
            except OSError as error:
                # A link, a socket, or a file that was removed meanwhile (open(2)).
                if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOENT):
                    continue
                raise
            try:
                os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & ~_WRITE)
            finally:
                os.close(fd)


def _empty(folder: str) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            # A link to a folder is removed, not what it leads to.
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)
