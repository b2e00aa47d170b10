"""`buckets`: objects of an object storage as files of a job, and what changed back into it.

A folder of a bucket is no file system: the objects are copied into it before the job starts, and in
the mode write-back new and changed files are uploaded when it has ended. Nothing is removed in the
bucket, links are not followed, and what other programs write meanwhile is not seen.

The copying is a program of its own, which runs as the job's user with the keys of the job's own
environment: it reaches what the job could reach, and no more.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from common.object_storage import PART_BYTES, first_line, open_bucket, read
from fairlead.wire.bucket_urls import parse_bucket
from fairlead.wire.decoders import decoder_of
from fairlead.wire.job import BucketFolder, BucketMode
from fairlead.wire.sizes import human_size
from runner.code.fetch import authorities
from runner.code.helper import Helpers, own_program
from runner.errors import CannotStart

if TYPE_CHECKING:
    from obstore.store import S3Store

WRITE_BACK_SECONDS = 3600.0
_KEYS = "AWS_"
_AT_ONCE = 8
_PART = ".fairlead-arriving"
_FAILED = 1


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """`changed_since`: the ctime (ns) after which files count as changed; None: download."""

    folder: BucketFolder
    changed_since: int | None = None


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """What the program did. `at`: a ctime (ns) after that of the last file that it wrote."""

    count: int
    size: int
    at: int = 0


async def bring(folder: BucketFolder, helpers: Helpers, job: Mapping[str, str]) -> int:
    """Copy the objects into the folder. Return the ctime after which its files are changed.

    Raises CannotStart with a sentence for the user.
    """
    moved = await _run(Order(folder=folder), helpers, job)
    if isinstance(moved, str):
        raise CannotStart(f"buckets: {folder.url} cannot be copied to {folder.path}: {moved}")
    return moved.at


async def write_back(
    folders: Sequence[tuple[BucketFolder, int]], helpers: Helpers, job: Mapping[str, str]
) -> list[str]:
    """Upload what changed in each folder since its time. Return the lines for the job's log."""
    lines = []
    for folder, since in folders:
        if folder.mode is not BucketMode.WRITE_BACK:
            continue
        try:
            async with asyncio.timeout(WRITE_BACK_SECONDS):
                moved = await _run(Order(folder=folder, changed_since=since), helpers, job)
        except TimeoutError:
            moved = f"it took more than {WRITE_BACK_SECONDS:g} s"
        if isinstance(moved, str):
            lines.append(f"buckets: {folder.path} was not written back to {folder.url}: {moved}")
        elif moved.count:
            files = f"{moved.count} changed files ({human_size(moved.size)})"
            lines.append(f"buckets: {files} of {folder.path} are in {folder.url}")
    return lines


async def _run(order: Order, helpers: Helpers, job: Mapping[str, str]) -> Copied | str:
    """Run the program. Return what it did, or why it failed."""
    argv = (*own_program("runner.job.buckets"), msgspec.json.encode(order).decode())
    keys = {name: value for name, value in job.items() if name.startswith(_KEYS)}
    if "AWS_ACCESS_KEY_ID" not in keys:  # a public bucket: never by the role of the node's machine
        keys["AWS_SKIP_SIGNATURE"] = "true"
    try:
        done = await helpers.run(argv, cwd="/", env={**helpers.env, **keys})
    except CannotStart as error:
        return str(error)
    last = next((line for line in reversed(done.output.splitlines()) if line.strip()), "")
    if done.code != 0:
        return last or f"exit code {done.code}"
    try:
        return decoder_of(Copied).decode(last)
    except msgspec.MsgspecError:
        return f"it ended without a result; its last words: {last[:300]}"


class BucketCopier:
    """Copies between one bucket and one folder. Blocking."""

    def __init__(self, folder: BucketFolder) -> None:
        self._root = Path(folder.path)
        self._name, self._prefix = parse_bucket(folder.url)
        self._endpoint = folder.endpoint

    def download(self) -> Copied:
        import obstore

        store = open_bucket(self._name, self._endpoint)
        count = size = 0
        self._root.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for found in obstore.list(store, prefix=self._prefix or None):
                files = [one for one in found if not one["path"].endswith("/")]
                count += len(files)
                size += sum(one["size"] for one in files)
                for _ in pool.map(lambda one: self._fetch(store, one["path"], one["size"]), files):
                    pass
        return Copied(count=count, size=size, at=self._now())

    def upload(self, since: int) -> Copied:
        import obstore

        store = open_bucket(self._name, self._endpoint)
        changed = list(self._changed(since))

        def put(path: Path) -> None:
            key = path.relative_to(self._root).as_posix()
            key = f"{self._prefix}/{key}" if self._prefix else key
            obstore.put(store, key, path, chunk_size=PART_BYTES, max_concurrency=2)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(put, (path for path, _ in changed)):
                pass
        return Copied(count=len(changed), size=sum(length for _, length in changed))

    def _fetch(self, store: S3Store, key: str, size: int) -> None:
        path = self.path_of(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name has at most 255 bytes (NAME_MAX).
        part = path.with_name(os.fsdecode(os.fsencode(path.name)[:200]) + _PART)
        with part.open("wb") as file:
            for piece in read(store, key, 0, size):
                file.write(piece)
        os.replace(part, path)

    def path_of(self, key: str) -> Path:
        """Return where an object goes. Raises OSError: a key may be anything, also `../x`."""
        below = key.removeprefix(self._prefix).lstrip("/") if self._prefix else key
        parts = PurePosixPath(below).parts
        if not parts or below.startswith("/") or ".." in parts or "\0" in below:
            raise OSError(f"the object {key!r} has no place in a folder")
        return self._root / below

    def _changed(self, since: int) -> Iterator[tuple[Path, int]]:
        for folder, _, names in os.walk(self._root):
            for name in sorted(names):
                path = Path(folder, name)
                info = path.lstat()
                if stat.S_ISREG(info.st_mode) and info.st_ctime_ns > since:
                    yield path, info.st_size

    def _now(self) -> int:
        """Return the present time as the folder's file system counts it."""
        mark = self._root / _PART
        mark.write_bytes(b"")
        at = mark.lstat().st_ctime_ns
        mark.unlink()
        return at


def main() -> int:
    from obstore.exceptions import BaseError

    os.environ.setdefault("SSL_CERT_FILE", authorities())  # an image may have none
    order = msgspec.json.decode(sys.argv[1], type=Order)
    copier = BucketCopier(order.folder)
    try:
        since = order.changed_since
        moved = copier.download() if since is None else copier.upload(since)
    except (BaseError, OSError) as error:
        print(first_line(error))  # noqa: T201
        return _FAILED
    print(msgspec.json.encode(moved).decode())  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
