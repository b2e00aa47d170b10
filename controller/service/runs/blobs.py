"""Uploads: files of a run that no node can fetch, named by their sha256."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Collection, Iterator, Sequence
from contextlib import contextmanager

from common.refusals import Conflict, Invalid, NotFound, Unavailable, Unprocessable
from controller.blobs import BlobDamaged, BlobStore, BlobTooLarge, PartsMissing, TooManyBlobs
from controller.outputs.bucket import BucketError
from controller.store.accounts import User
from fairlead.configuration.runs.plan import Plan
from fairlead.wire.blobs import Part
from fairlead.wire.errors import NOT_UPLOADED, UPLOAD_NOT_STORED

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class BlobService:
    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    async def put(self, digest: str, pieces: AsyncIterable[bytes], *, user: User) -> int:
        """Store an upload and return its size. Raises Invalid, Unprocessable, Unavailable."""
        _check(digest)
        with _refusals():
            return await self._blobs.put(digest, pieces, user=user.name)

    async def missing(self, digest: str, parts: Sequence[Part], *, user: User) -> list[str]:
        """Return the parts of a new upload that no upload of this user has. Raises Invalid."""
        _check(digest)
        return await self._blobs.missing(parts, user=user.name)

    async def put_parts(
        self,
        digest: str,
        parts: Sequence[Part],
        sent: Collection[str],
        pieces: AsyncIterable[bytes],
        *,
        user: User,
    ) -> int:
        """Store an upload of which only the parts in `sent` come; return its size.

        Raises Invalid, Conflict, Unprocessable, Unavailable.
        """
        _check(digest)
        with _refusals():
            return await self._blobs.put_parts(digest, parts, sent, pieces, user=user.name)

    async def size(self, digest: str, *, user: User) -> int:
        """Return the bytes of an upload of this user. Raises Invalid, NotFound, Unavailable."""
        _check(digest)
        with _refusals():
            size = await self._blobs.size_for(digest, user.name)
        if size is None:
            raise NotFound(f"you have no upload {digest}")
        return size


async def require_uploads(blobs: BlobStore, plan: Plan, user: User) -> None:
    """Raise Conflict unless all uploads of the plan are there, and Unavailable if a bucket does not
    tell."""
    digests = dict.fromkeys(blob for spec in plan.specs for blob in spec.blobs)
    for digest in digests:
        try:
            size = await blobs.size_for(digest, user.name)
        except BucketError as error:
            raise why_unreachable(error) from error
        if size is None:
            raise Conflict(
                f"the upload {digest} of {user.name} is missing or expired; apply the run again",
                code=NOT_UPLOADED,
                field="repos" if any(spec.repos for spec in plan.specs) else "files",
            )


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except BlobTooLarge as error:
        raise Unprocessable(str(error), code="too_large") from None
    except TooManyBlobs as error:
        raise Unprocessable(str(error), code="too_many_uploads") from None
    except BlobDamaged as error:
        raise Invalid(str(error), code="damaged") from None
    except PartsMissing as error:
        raise Conflict(str(error), code="parts_missing") from None
    except BucketError as error:
        raise why_unreachable(error) from error
    except OSError as error:
        why = f"the upload cannot be stored: {error.strerror}"
        raise Unavailable(why, code=UPLOAD_NOT_STORED) from error


def why_unreachable(error: BucketError) -> Unavailable:
    """Return what a user hears while the bucket for uploads is away."""
    return Unavailable(
        f"uploads are kept in a bucket that cannot be used now; try again later: {error}",
        code="uploads_unreachable",
    )


def _check(digest: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise Invalid("an upload is named by its sha256: 64 hexadecimal digits", field="blob")
