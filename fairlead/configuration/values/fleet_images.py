"""The images that a fleet's nodes pull ahead: `images` and `registry_auth` of `type: fleet`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fairlead.configuration.convert import ConfigurationError, convert
from fairlead.configuration.field import Field
from fairlead.configuration.text.stored_secrets import is_reference, problem_of
from fairlead.configuration.values.container import RegistryAuthFields
from fairlead.configuration.values.images import ImageName, registry_of
from fairlead.wire.shim import RegistryAuth

MAX_IMAGES = 32
_PASSWORD = (
    "${{ secrets.NAME }}, with a secret that an admin stored for all users "
    "(`fairlead secret set --shared NAME`)"
)


class _ImagesFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    images: Annotated[tuple[ImageName, ...], Field(f"a list of up to {MAX_IMAGES} images")] = ()
    registry_auth: Annotated[
        RegistryAuthFields | None, Field("a mapping of username and password")
    ] = None


class FleetImages(msgspec.Struct, frozen=True, kw_only=True):
    """`auth` names a stored secret, and holds no password."""

    images: tuple[str, ...] = ()
    auth: RegistryAuth | None = None


def fleet_images(images: object, registry_auth: object) -> FleetImages:
    """Return what the two fields say. Raises ConfigurationError."""
    written = {"images": images, "registry_auth": registry_auth}
    fields = convert(written, _ImagesFields)
    if len(fields.images) > MAX_IMAGES:
        raise ConfigurationError(
            "images", f"has {len(fields.images)} entries", f"at most {MAX_IMAGES} images"
        )
    for number, image in enumerate(fields.images):
        if image in fields.images[:number]:
            raise ConfigurationError(
                f"images[{number}]", f"names {image} for the second time", "each image once"
            )
    return FleetImages(images=tuple(map(str, fields.images)), auth=_login(fields))


def _login(fields: _ImagesFields) -> RegistryAuth | None:
    login = fields.registry_auth
    if login is None:
        return None
    if not fields.images:
        raise ConfigurationError(
            "registry_auth", "is of a fleet without images", "only with `images`"
        )
    # A registry must not get the password of another one.
    registries = sorted({registry_of(image) for image in fields.images})
    if len(registries) > 1:
        raise ConfigurationError(
            "registry_auth",
            f"is for one registry, and the images are of {', '.join(registries)}",
            "images of one registry; a fleet without registry_auth may list those of several",
        )
    if not is_reference(login.password):
        raise ConfigurationError(
            "registry_auth.password",
            "is no stored secret, and a fleet stores no password",
            _PASSWORD,
        )
    problem = problem_of(login.username, "registry_auth.username")
    if problem is not None:
        raise ConfigurationError("registry_auth.username", problem)
    return RegistryAuth(username=login.username, password=login.password)
