"""`type: hetzner`: the cloud of Hetzner makes the machines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from controller.provider_config.checks import (
    ACCOUNTS,
    ADDRESSES,
    Fields,
    Priced,
    account_of,
    check_endpoint,
)
from fairlead.configuration.convert import ConfigurationError, convert
from fairlead.configuration.field import Field

_TOKENS = "the absolute path of a file with a token of the project that may read and write"


class _HetznerFields(Fields, frozen=True, kw_only=True):
    type: Annotated[Literal["hetzner"], Field("hetzner: the cloud of Hetzner makes the machines")]
    token_file: Annotated[str, Field(_TOKENS)]
    locations: Annotated[tuple[str, ...], Field("a list of locations, such as [fsn1, nbg1]")]
    project: Annotated[str | None, Field(ACCOUNTS)] = None
    image: Annotated[int | str, Field("the id of a snapshot of Fairlead, or an image's name")]
    ssh_keys: Annotated[tuple[int | str, ...], Field("a list of ids or names of SSH keys")] = ()
    firewalls: Annotated[tuple[int, ...], Field("a list of ids of firewalls")] = ()
    networks: Annotated[tuple[int, ...], Field("a list of ids of networks")] = ()
    address: Annotated[Literal["public", "private"], Field(ADDRESSES)] = "public"
    endpoint: Annotated[str | None, Field("the URL of another server with this API")] = None


class HetznerProvider(Priced, frozen=True, kw_only=True):
    """A project at Hetzner. `locations`: those in which machines may be. `project` None: it is
    known by its token."""

    token_file: Path
    project: str | None = None
    locations: tuple[str, ...]
    image: int | str
    ssh_keys: tuple[int | str, ...] = ()
    firewalls: tuple[int, ...] = ()
    networks: tuple[int, ...] = ()
    is_public: bool = True
    endpoint: str = "https://api.hetzner.cloud/v1"

    @property
    def regions(self) -> tuple[str, ...]:
        return self.locations

    def token(self) -> str:
        """Return the token: read each time, so that a new one needs no restart.

        Raises OSError, and ValueError with a sentence that does not show the content.
        """
        content = self.token_file.read_bytes().strip()
        # It goes into a header of HTTP.
        if not re.fullmatch(rb"[!-~]{1,500}", content):
            raise ValueError(f"{self.token_file} has no token: one line of ASCII is needed")
        return content.decode()


def read_hetzner(within: str, data: dict[str, Any]) -> HetznerProvider:
    written = convert(data, _HetznerFields, within=within)
    field = f"{within}.token_file"
    file = Path(written.token_file)
    if not file.is_absolute():
        raise ConfigurationError(field, f"{file} is not an absolute path", _TOKENS)
    image = written.image
    if isinstance(image, str) and re.fullmatch(r"[0-9]{1,18}", image):
        # An id in quotes; no image has a number as its name.
        image = int(image)
    plain = HetznerProvider(token_file=file, locations=written.locations, image=image)
    try:
        plain.token()
    except OSError as error:
        raise ConfigurationError(field, f"{file}: {error.strerror}", _TOKENS) from None
    except ValueError as error:
        raise ConfigurationError(field, str(error), _TOKENS) from None
    if not written.locations:
        raise ConfigurationError(f"{within}.locations", "is empty", "a list such as [fsn1, nbg1]")
    is_public = written.address == "public"
    if not is_public and not written.networks:
        problem = "is needed with address: private"
        raise ConfigurationError(f"{within}.networks", problem, "a list of ids of networks")
    check_endpoint(within, written.endpoint)
    return msgspec.structs.replace(
        plain,
        project=account_of(f"{within}.project", written.project),
        ssh_keys=written.ssh_keys,
        firewalls=written.firewalls,
        networks=written.networks,
        is_public=is_public,
        endpoint=(written.endpoint or plain.endpoint).rstrip("/"),
    )
