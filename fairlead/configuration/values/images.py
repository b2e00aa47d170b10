"""Names of container images: `[REGISTRY[:PORT]/]PATH[:TAG][@DIGEST]`, as registries and engines
read them.

A name that no engine accepts is refused before a job waits for a node with it.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Self

from fairlead.configuration.values.units import shown

_HOST_PART = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_REGISTRY = re.compile(
    rf"(?:{_HOST_PART}(?:\.{_HOST_PART})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?", re.ASCII
)
_PATH = re.compile(
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*", re.ASCII
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_DIGEST = re.compile(
    r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}|(?!sha(?:256|512):)"
    r"[A-Za-z][A-Za-z0-9]*(?:[+._-][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}",
    re.ASCII,
)
_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MAX_LENGTH = 255
PYTHON_PLACE = "{python}"
NEWEST_PYTHON = "3.13"
DEFAULT_IMAGE = f"astral/uv:python{PYTHON_PLACE}-bookworm"
"""Debian with uv and git, and with the Python that a job asks for."""
IMAGE_ALLOWED = "the name of an image, such as ubuntu:24.04 or registry.example.com:5000/team/job:1"


class ImageName(str):
    __slots__ = ()
    ALLOWED = IMAGE_ALLOWED
    SCHEMA: ClassVar[dict[str, Any]] = {"type": "string", "minLength": 1}

    @classmethod
    def read(cls, value: object) -> Self:
        return cls(image_name(value))


def image_name(text: object) -> str:
    """Return the name. Raises ValueError with what is wrong."""
    if not isinstance(text, str) or not text:
        raise ValueError(f"{shown(text)} is not the name of an image")
    wrong = _what_is_wrong(text)
    if wrong is not None:
        raise ValueError(f"{shown(text)} {wrong}")
    return text


def registry_of(image: str) -> str:
    """Return the registry that the name of an image belongs to."""
    registry, _ = _parts(image.partition("@")[0])
    return "docker.io" if registry in (None, "index.docker.io") else registry


def default_image_name(text: object) -> str:
    """Return the name of a default image, in which `{python}` stands for the version of Python that
    a job asks for, else the newest. Raises ValueError with what is wrong."""
    if isinstance(text, str):
        image_name(image_for(text, None))
        return text
    return image_name(text)


def image_for(default: str, python: str | None) -> str:
    """Return the default image of a job with this version of Python."""
    short = ".".join((python or NEWEST_PYTHON).split(".")[:2])
    return default.replace(PYTHON_PLACE, short)


def _what_is_wrong(text: str) -> str | None:
    if "://" in text:
        return "is a URL: leave out everything up to ://"
    if "$" in text:
        return "holds a variable, which is not filled in here: write the name itself"
    if any(char.isspace() for char in text):
        return "contains a blank, which image names cannot have"
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        return "has an invalid digest: write sha256: and 64 hexadecimal digits"
    rest, colon, tag = _tagged(rest)
    if colon and not tag:
        return "has nothing after its colon: write a tag, or leave the colon out"
    if colon and not _TAG.fullmatch(tag):
        return "has an invalid tag: use up to 128 letters, digits, '_', '.' and '-'"
    registry, path = _parts(rest)
    if registry is not None and not _REGISTRY.fullmatch(registry):
        return f"names an invalid registry: {registry[:100]}"
    if path != path.lower() and _PATH.fullmatch(path.lower()):
        return "has capital letters, which only a registry's host and a tag may have"
    if not _PATH.fullmatch(path):
        return "is not the name of an image"
    if len(_in_full(registry, path)) > _MAX_LENGTH:
        return (
            f"is longer than the {_MAX_LENGTH} characters that a name may have after its registry"
        )
    if _ID.fullmatch(rest):
        return "is an image's id, not its name: other nodes do not know it"
    return None


def _in_full(registry: str | None, path: str) -> str:
    """Return the path as an engine completes it. Its length counts; before 28, that of the registry
    did too, so an older node may still refuse the name."""
    return path if registry is not None or "/" in path else f"library/{path}"


def _tagged(text: str) -> tuple[str, str, str]:
    """Split off the tag. A colon before the last slash belongs to the registry's port."""
    folder, slash, last = text.rpartition("/")
    name, colon, tag = last.partition(":")
    return f"{folder}{slash}{name}", colon, tag


def _parts(text: str) -> tuple[str | None, str]:
    """Split off the registry, which is what looks like a host; without one it is the engine's
    own."""
    first, slash, rest = text.partition("/")
    is_host = first == "localhost" or "." in first or ":" in first or first != first.lower()
    return (first, rest) if slash and is_host else (None, text)
