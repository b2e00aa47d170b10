"""The bucket in which one installation keeps all that must outlive its machines.

An object at its top names the installation. Nothing is read or written before that was compared, so
a controller that was given the bucket of another installation changes nothing there. Buckets that
hold only logs, or only large outputs, may be shared (`SharedBucket`). The calls block: each runs in
a thread of its own pool, which a bucket that does not answer can fill without holding up anything
else.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import msgspec

from common import object_storage
from controller.outputs import bucket as buckets
from controller.outputs.bucket import Bucket, BucketError, BucketObject, as_bucket_errors
from controller.outputs.bucket_threads import BucketThreads

if TYPE_CHECKING:
    from pathlib import Path

    from obstore.store import S3Store

P = ParamSpec("P")
R = TypeVar("R")

MARKER = "fairlead-installation"
LOGS = "logs"
"""The folder of all logs; each installation has one of its own in there."""
MAX_AT_ONCE = 16 << 20
"""Bytes of the largest object that is one request, and in memory meanwhile."""
_REQUEST = timedelta(seconds=20)
_THREADS = 8


class BucketOfAnother(BucketError):
    """The bucket belongs to another installation."""


class Listed(msgspec.Struct, frozen=True):
    """An object: its key below what was listed, its bytes, and when it was written (Unix time, by
    the storage's clock)."""

    name: str
    size: int
    at: float


class OwnBucket:
    """The bucket of one installation. `may_take`: whether a new one becomes this installation's at
    the first use; else that is an error. Every method may raise BucketError."""

    def __init__(self, bucket: Bucket, installation_id: str, *, may_take: bool = True) -> None:
        self.bucket = self._bucket = bucket
        self._installation_id = installation_id
        self._may_take = may_take
        self._store: S3Store | None = None
        self._is_own = False
        self._is_closed = False
        self._threads = BucketThreads(_THREADS, "bucket")

    def close(self) -> None:
        """Let each request after the present ones fail. Another thread may call it."""
        self._is_closed = True
        self._threads.close()

    def __str__(self) -> str:
        return str(self._bucket)

    async def ask(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call that blocks in a thread."""
        return await self._threads.ask(call, *args, **kwargs)

    async def put_file(self, path: Path, size: int, key: str) -> None:
        """Write a file of so many bytes, whole or not at all."""
        if size <= MAX_AT_ONCE:
            await self.ask(lambda: self.put(key, path.read_bytes()))
        else:
            await self.ask(self.verify)
            await buckets.upload(path, size, self.place(key))

    def place(self, key: str) -> BucketObject:
        """Return where the object of a key is; each kind of object has a folder of its own."""
        kind, _, rest = key.partition("/")
        return self._bucket.object(f"{kind}/{self._installation_id}/{rest}")

    # -- what blocks ------------------------------------------------------------------------

    def verify(self) -> None:
        """Raise BucketOfAnother if the bucket is another installation's; take it if it is new."""
        if self._is_own:
            return
        if not self._may_take:
            self.require_own()
            return
        owner = owner_of(self._bucket)
        if owner is None:
            self._refuse_shared()
            owner = self._take()
        if owner != self._installation_id:
            raise _of_another(self._bucket, owner, self._installation_id)
        self._is_own = True

    def require_own(self) -> None:
        """Raise BucketOfAnother if the bucket is another installation's, or nobody's yet: unlike
        `verify`, it writes nothing."""
        if not self._is_own and (owner := owner_of(self._bucket)) != self._installation_id:
            raise BucketOfAnother(f"{self._bucket} belongs to {owner or 'no installation yet'}")
        self._is_own = True

    def put(self, key: str, data: bytes) -> None:
        import obstore

        with as_bucket_errors(self._bucket):
            obstore.put(self._opened(), self.place(key).key, data, use_multipart=False)

    def get(self, key: str) -> bytes | None:
        """Return the object's bytes; None: it is not there."""
        import obstore
        from obstore.exceptions import NotFoundError

        with as_bucket_errors(self._bucket):
            try:
                return bytes(obstore.get(self._opened(), self.place(key).key).bytes())
            except (NotFoundError, FileNotFoundError):
                # obstore documents its own error, and raises FileNotFoundError.
                return None

    def written_at(self, key: str) -> float:
        """Return when the object was written (Unix time, by the storage's clock)."""
        import obstore

        with as_bucket_errors(self._bucket):
            found = obstore.head(self._opened(), self.place(key).key)
            return found["last_modified"].timestamp()

    def copy(self, key: str, target: str) -> bool:
        """Copy an object within the storage; return whether it was there."""
        import obstore
        from obstore.exceptions import NotFoundError

        with as_bucket_errors(self._bucket):
            try:
                obstore.copy(self._opened(), self.place(key).key, self.place(target).key)
            # Another controller may have removed it between a listing and this call.
            except (NotFoundError, FileNotFoundError):
                return False
            return True

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is removed."""
        import obstore
        from obstore.exceptions import NotFoundError

        with as_bucket_errors(self._bucket):
            try:
                obstore.delete(self._opened(), self.place(key).key)
            # Gone already: some stores say so for a delete, and others call it done.
            except (NotFoundError, FileNotFoundError):
                return

    def list(self, below: str) -> list[Listed]:
        """Return the objects below a folder, which ends with a slash."""
        import obstore

        prefix = self.place(below).key
        listed = []
        with as_bucket_errors(self._bucket):
            for some in obstore.list(self._opened(), prefix=prefix):
                for found in some:
                    name, at = found["path"][len(prefix) :], found["last_modified"].timestamp()
                    if name:  # some tools leave an object for the folder itself
                        listed.append(Listed(name, found["size"], at))
        return listed

    def _refuse_shared(self) -> None:
        """Raise BucketOfAnother if another installation keeps its logs here: with this one's name
        in the bucket, that one would be refused at its next start."""
        import obstore

        prefix = self._bucket.object(LOGS).key
        with as_bucket_errors(self._bucket):
            found = obstore.list_with_delimiter(_open(self._bucket), prefix=f"{prefix}/")
        owners = {one.rstrip("/").rpartition("/")[2] for one in found["common_prefixes"]}
        if others := sorted(owners - {self._installation_id}):
            raise BucketOfAnother(
                f"{self._bucket} has logs of the installation {others[0]}, and this one is "
                f"{self._installation_id}: give another bucket or prefix"
            )

    def _take(self) -> str | None:
        """Name this installation in a bucket without a name; return whose it is then."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError

        place = self._bucket.object(MARKER)
        name = f"{self._installation_id}\n".encode()
        with as_bucket_errors(self._bucket):
            store = _open(self._bucket)
            try:
                # Of two installations that begin at once, one gets it.
                obstore.put(store, place.key, name, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                pass
            # Not every store writes on a condition (If-None-Match: *); there the last one wins.
            except NotSupportedError:
                obstore.put(store, place.key, name, use_multipart=False)
        return owner_of(self._bucket)

    def _opened(self) -> S3Store:
        if self._is_closed:
            raise BucketError("the controller ends")
        if self._store is None:
            self._store = _open(self._bucket)
        self.verify()
        return self._store


class SharedBucket:
    """A bucket in which several installations may keep one kind of object, each at places of its
    own. Threads may call it."""

    def __init__(self, bucket: Bucket, installation_id: str) -> None:
        self._bucket = bucket
        self._installation_id = installation_id
        self._is_free = False

    def verify(self) -> None:
        """Raise BucketOfAnother if another installation has this bucket for itself alone. Nothing
        is written. Raises BucketError."""
        if self._is_free:
            return
        owner = owner_of(self._bucket)
        if owner not in (None, self._installation_id):
            raise _of_another(self._bucket, owner, self._installation_id)
        self._is_free = True


def _of_another(bucket: Bucket, owner: str | None, installation_id: str) -> BucketOfAnother:
    return BucketOfAnother(
        f"{bucket} belongs to the installation {owner}, and this one is {installation_id}: "
        "give another bucket or prefix"
    )


def owner_of(bucket: Bucket) -> str | None:
    """Return the installation to which a bucket belongs; None: it is new. Blocking. Raises
    BucketError."""
    import obstore
    from obstore.exceptions import NotFoundError

    place = bucket.object(MARKER)
    with as_bucket_errors(bucket):
        try:
            return (
                bytes(obstore.get(_open(bucket), place.key).bytes())
                .decode(errors="replace")
                .strip()
            )
        except (NotFoundError, FileNotFoundError):
            return None


def _open(bucket: Bucket) -> S3Store:
    where = (bucket.name, bucket.endpoint, bucket.region)
    return object_storage.open_bucket(*where, request=_REQUEST, retries=0)
