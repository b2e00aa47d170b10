"""Prepares code: receives and checks blobs, then puts repositories and files in their places.

A blob is named by the sha256 of its bytes, so it may be sent twice. A folder that is not empty is
refused or left as it is, never mixed with a repository. What a failed repository left is removed,
so that the same job can be tried again on the same volume.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import threading
from collections.abc import AsyncIterable, Callable, Iterable
from pathlib import Path

from common.errors import Refused
from runner.code.errors import Abandoned, BadArchive
from runner.code.git import Git, check_repo
from runner.code.tree import unpack
from runner.errors import CannotStart
from runner.processes.identity import Identity
from runner.processes.launch import make_folder, place_of
from runner.schemas import Files, IfFolderExists, Repo, RepoCredentials, SubmitRequest

MOST_BYTES = 8 << 30
"""The largest size of one blob."""


class CodeStore:
    def __init__(self, task: Path) -> None:
        self._folder = task / "code"
        self._wanted: frozenset[str] = frozenset()
        self._there: set[str] = set()
        self._arrivals = 0

    def expect(self, digests: Iterable[str]) -> None:
        self._wanted = frozenset(digests)

    @property
    def missing(self) -> frozenset[str]:
        return self._wanted - self._there

    def path(self, digest: str) -> Path:
        return self._folder / digest

    async def receive(self, digest: str, pieces: AsyncIterable[bytes]) -> None:
        """Receive a blob; the same blob may come again. Raises Refused, and OSError."""
        if digest not in self._wanted:
            raise Refused(
                409, "no_code_expected", "the submitted job does not need this code", "digest"
            )
        self._arrivals += 1
        arriving = self._folder / f".{digest}.{self._arrivals}"
        await asyncio.to_thread(self._folder.mkdir, mode=0o700, exist_ok=True)
        try:
            found = await _store(arriving, pieces)
            if found != digest:
                raise Refused(400, "damaged", "the code does not match its digest", "digest")
            await asyncio.to_thread(os.replace, arriving, self.path(digest))
        except BaseException:
            arriving.unlink(missing_ok=True)
            raise
        self._there.add(digest)

    def drop(self) -> None:
        """Remove the blobs, once the code is in its place or never will be. Blocking."""
        shutil.rmtree(self._folder, ignore_errors=True)


async def _store(path: Path, pieces: AsyncIterable[bytes]) -> str:
    digest, size = hashlib.sha256(), 0
    with await asyncio.to_thread(path.open, "xb") as file:
        async for piece in pieces:
            size += len(piece)
            if size > MOST_BYTES:
                raise Refused(413, "too_large", f"code is limited to {MOST_BYTES} bytes")
            await asyncio.to_thread(file.write, piece)
            digest.update(piece)
    return digest.hexdigest()


class CodePreparer:
    def __init__(
        self, store: CodeStore, git: Git, working_dir: str, identity: Identity | None
    ) -> None:
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

    async def _repo(self, repo: Repo, keys: RepoCredentials | None) -> None:
        if repo.archive is None and (wrong := check_repo(repo)) is not None:
            raise CannotStart(wrong)
        target = place_of(repo.path, self._working_dir)
        if not await asyncio.to_thread(self._claim, repo, target):
            return
        try:
            if repo.archive is not None:
                await self._unpack(repo.archive, target, replace=False)
            else:
                await self._git.fetch(repo, target, keys)
            if repo.diff is not None:
                await self._git.apply(self._store.path(repo.diff), target)
        except BaseException:
            await asyncio.to_thread(_empty, target)
            raise

    async def _files(self, files: Files) -> None:
        target = place_of(files.path, self._working_dir)
        await asyncio.to_thread(make_folder, target, self._identity, "files")
        await self._unpack(files.archive, target, replace=True)

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
            unpack(
                self._store.path(blob),
                Path(target),
                owner=self._owner,
                replace=replace,
                check=check,
            )

        await _in_thread(work, abandoned.set, target)


async def _in_thread(work: Callable[[], None], abandon: Callable[[], None], target: str) -> None:
    """Run `work` in a thread; if cancelled, end it and wait. Raises CannotStart."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        abandon()
        await asyncio.wait({working})
        working.exception()
        raise
    except BadArchive as error:
        raise CannotStart(f"the archive for {target!r} is refused: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CannotStart(f"there is no space left to unpack into {target!r}") from error
        raise CannotStart(f"cannot unpack into {target!r}: {error.strerror}") from error


def _empty(folder: str) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)
