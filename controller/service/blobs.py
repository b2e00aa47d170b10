"""Uploads: what a run's job needs from the machine of its user."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable

from controller.blobs import BlobDamaged, BlobStore, BlobTooLarge, TooManyBlobs
from controller.service.errors import Invalid, NotFound, Refused, Unavailable
from controller.store.users import User

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class BlobService:
    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    async def put(self, digest: str, pieces: AsyncIterable[bytes], *, user: User) -> int:
        """Its size. Raises Invalid, Refused, Unavailable."""
        _check(digest)
        try:
            return await self._blobs.put(digest, pieces, user=user.name)
        except BlobTooLarge as error:
            raise Refused(str(error), code="too_large") from None
        except TooManyBlobs as error:
            raise Refused(str(error), code="too_many_uploads") from None
        except BlobDamaged as error:
            raise Invalid(str(error), code="damaged") from None
        except OSError as error:
            raise Unavailable(f"the upload cannot be stored: {error.strerror}") from error

    async def size(self, digest: str, *, user: User) -> int:
        """The bytes of an upload of this user. Raises Invalid, NotFound."""
        _check(digest)
        size = await self._blobs.size_for(digest, user.name)
        if size is None:
            raise NotFound(f"there is no upload {digest} of yours")
        return size


def _check(digest: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise Invalid("an upload is named by its sha256: 64 hexadecimal digits", field="blob")
