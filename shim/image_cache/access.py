"""Decides which runs may use an image that is already on the node.

A registry with passwords decides who gets an image, and a node that has the image must not give it
to others. So another run may use an image that was pulled with credentials only after its registry
agreed for that run: with the run's credentials, or without if it has none. A registry that names
the content of such an image under another name must show that it has it. Images that the operator
brought to the node (loaded, tagged, pulled by hand) are open to all runs. The record of a private
image is on disk before the image is, so a shim that is killed during a pull knows of it later.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict

import msgspec

from fairlead.wire.shim import RegistryAuth
from shim.engines.base import Engine, ImageError, ImageInfo, ImageProblem, repository_of
from shim.errors import EngineError
from shim.state.records import Records

log = logging.getLogger(__name__)

_MAX_GRANTS = 10_000


class PrivateImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that was pulled with credentials as `reference`.

    `image_id` None: the pull began and its end is not recorded; `before` is the image that the
    reference named then.
    """

    reference: str
    image_id: str | None = None
    before: str | None = None


class ImageAccess:
    """Knows the private images. `is_open`: the operator lets every run use all images on the
    node."""

    def __init__(
        self, engine: Engine, records: Records[PrivateImage], *, is_open: bool = False
    ) -> None:
        self._engine = engine
        self._records = records
        self._is_open = is_open
        self._pulls: dict[str, PrivateImage] = {}
        """Pulls with credentials that go on, or whose end could not be recorded, by key."""
        self._private: set[tuple[str, str]] = set()
        """Repository and image."""
        self._granted: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Run and image: the registry is asked once for each."""

    async def open(self) -> None:
        """Load the records. Raises EngineError, OSError."""
        for key, record in (await self._records.load()).records.items():
            if record.image_id is not None:
                self._private.add((repository_of(record.reference), record.image_id))
            else:
                self._pulls[key] = record
        for record in tuple(self._pulls.values()):
            await self._settle(record)

    async def pull_begins(self, reference: str) -> None:
        """Record a pull with credentials. Raises OSError: without the record there must be no
        pull."""
        known = await self._engine.local_image(reference)
        record = PrivateImage(reference=reference, before=None if known is None else known.id)
        key = _key(reference)
        # Of two pulls at once, the second must not take the first one's image for an older one.
        self._pulls.setdefault(key, record)
        await self._records.save(key, self._pulls[key])

    async def pull_ended(self, reference: str) -> None:
        """Record what a pull has brought, however it ended.

        If that fails, the image counts as private until the shim starts again and finds out.
        """
        record = self._pulls.get(_key(reference))
        if record is None:
            return
        try:
            await self._settle(record)
        except (EngineError, OSError) as error:
            log.warning("image %s counts as private for now: %s", reference, error)

    def must_ask(self, run_id: str, reference: str, image: ImageInfo) -> bool:
        """Return whether its registry must agree before the run may use this image of the node."""
        if self._is_open or (run_id, image.id) in self._granted:
            return False
        if image.by_id:
            return any(image.id == private for _, private in self._private)
        repository = repository_of(reference)
        return (repository, image.id) in self._private or any(
            repository_of(pull.reference) == repository and pull.before != image.id
            for pull in self._pulls.values()
        )

    async def must_prove(self, run_id: str, reference: str, image: ImageInfo) -> bool:
        """Return whether its registry must show that it has the image, since runs got the same one
        with credentials from elsewhere: then the engine fetched nothing for this name.

        An operator's own name (`docker tag`) has no digest in its repository, and is open to all.
        Raises EngineError.
        """
        is_sure = self._is_open or image.by_id or image.digest is None
        if is_sure or (run_id, image.id) in self._granted:
            return False
        repository = repository_of(reference)
        if any(owner != repository for owner, private in self._private if private == image.id):
            return True
        # A pull that has just brought the image may not be settled yet.
        for pull in tuple(self._pulls.values()):
            if repository_of(pull.reference) != repository and pull.before != image.id:
                brought = await self._engine.local_image(pull.reference)
                if brought is not None and brought.id == image.id:
                    return True
        return False

    async def ask(
        self, run_id: str, reference: str, image: ImageInfo, auth: RegistryAuth | None
    ) -> None:
        """Raise ImageError when the registry refuses the image to the run, or does not answer."""
        if image.by_id:
            raise ImageError(
                f"image {reference} was pulled with credentials: name it as its registry does, "
                "which is asked whether this run may have it",
                ImageProblem.REFUSED,
            )
        if await self.must_prove(run_id, reference, image):
            await self._engine.prove_content(reference, image, auth)
        else:
            await self._engine.ask_registry(reference, image.digest, auth)
        self.grant(run_id, image)

    def grant(self, run_id: str, image: ImageInfo) -> None:
        """Record that the registry gave the image to this run."""
        self._granted[run_id, image.id] = None
        if len(self._granted) > _MAX_GRANTS:
            self._granted.popitem(last=False)

    async def forget(self, image_id: str) -> None:
        """Forget an image that is no longer on the node. Raises OSError."""
        for repository, private in tuple(self._private):
            if private == image_id:
                self._private.discard((repository, private))
                await self._records.delete(_key(repository, private))

    async def _settle(self, record: PrivateImage) -> None:
        """Record the end of a pull. Raises EngineError, OSError."""
        reference = record.reference
        image = await self._engine.local_image(reference)
        if image is not None and image.id != record.before:
            repository = repository_of(reference)
            self._private.add((repository, image.id))
            done = msgspec.structs.replace(record, image_id=image.id)
            # Before the pull's record goes: a crash in between must not open the image to all.
            await self._records.save(_key(repository, image.id), done)
        await self._records.delete(_key(reference))
        self._pulls.pop(_key(reference), None)


def _key(name: str, image_id: str = "") -> str:
    return hashlib.sha256(f"{name}\n{image_id}".encode()).hexdigest()
