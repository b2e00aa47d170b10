"""Names of runs, groups and nodes: which are valid, and generated ones for runs without a name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, Self

from fairlead.configuration.values.units import shown

# By its id, a run may be ordered twice.
_RUN_NAME = re.compile(r"(?![0-9a-f]{16}$)[a-z][a-z0-9-]{0,40}", re.ASCII)
_NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
NODE_NAMES = "1 to 63 of a-z, 0-9, '.' and '-', with a letter or digit at both ends"

ADJECTIVES = (
    "agile",
    "amber",
    "brave",
    "breezy",
    "bright",
    "brisk",
    "calm",
    "careful",
    "clever",
    "cosy",
    "crisp",
    "curious",
    "daring",
    "eager",
    "early",
    "fair",
    "fleet",
    "fond",
    "gentle",
    "glad",
    "golden",
    "graceful",
    "hardy",
    "honest",
    "humble",
    "jolly",
    "keen",
    "kind",
    "lively",
    "loyal",
    "lucky",
    "mellow",
    "merry",
    "mild",
    "neat",
    "nimble",
    "noble",
    "patient",
    "plucky",
    "polite",
    "proud",
    "quick",
    "quiet",
    "rapid",
    "ready",
    "rosy",
    "silver",
    "smart",
    "snug",
    "steady",
    "stout",
    "sunny",
    "swift",
    "tidy",
    "tranquil",
    "trusty",
    "warm",
    "wise",
    "witty",
)
NOUNS = (
    "albatross",
    "auk",
    "badger",
    "beaver",
    "bittern",
    "bream",
    "crane",
    "curlew",
    "dolphin",
    "dunlin",
    "eider",
    "egret",
    "falcon",
    "finch",
    "gannet",
    "grebe",
    "gull",
    "hare",
    "heron",
    "ibis",
    "kestrel",
    "kittiwake",
    "lark",
    "lynx",
    "marten",
    "merlin",
    "mole",
    "narwhal",
    "newt",
    "osprey",
    "otter",
    "owl",
    "oyster",
    "pelican",
    "petrel",
    "pike",
    "plover",
    "porpoise",
    "puffin",
    "rail",
    "raven",
    "robin",
    "salmon",
    "sanderling",
    "seal",
    "shearwater",
    "skua",
    "smelt",
    "snipe",
    "sparrow",
    "sprat",
    "starling",
    "stork",
    "swan",
    "teal",
    "tern",
    "trout",
    "turbot",
    "urchin",
    "vole",
    "walrus",
    "whale",
    "whimbrel",
    "wren",
)


class RunName(str):
    __slots__ = ()
    ALLOWED = (
        "a lowercase letter, then up to 40 lowercase letters, digits and hyphens; "
        "not 16 hex digits, which an id has"
    )
    SCHEMA: ClassVar[dict[str, Any]] = {
        "type": "string",
        "pattern": "^(?![0-9a-f]{16}$)[a-z][a-z0-9-]{0,40}$",
    }

    @classmethod
    def read(cls, value: object) -> Self:
        if not isinstance(value, str) or not is_run_name(value):
            raise ValueError(f"{shown(value)} is not a run name{_as_name(value)}")
        return cls(value)


class GroupName(str):
    """A name that was checked with its group."""

    __slots__ = ()
    ALLOWED = RunName.ALLOWED
    SCHEMA = RunName.SCHEMA

    @classmethod
    def read(cls, value: object) -> Self:
        return cls(str(value))


def _as_name(value: object) -> str:
    """Return a run name that is like the text; empty: there is none."""
    if isinstance(value, bool):
        return ": quote it"
    text = re.sub(r"[^a-z0-9]+", "-", value.strip().lower()) if isinstance(value, str) else ""
    name = text.strip("-").lstrip("-0123456789")
    return f": write {name}" if is_run_name(name) else ""


def is_node_name(text: str) -> bool:
    return _NODE_NAME.fullmatch(text) is not None


def is_run_name(text: str) -> bool:
    return _RUN_NAME.fullmatch(text) is not None


def generate_name(pick: Callable[[int], int], taken: Callable[[str], bool]) -> str:
    """Return a name like `wise-otter-1`.

    `pick(n)` gives a random index below n; the number is the first that is not `taken`.
    """
    stem = f"{ADJECTIVES[pick(len(ADJECTIVES))]}-{NOUNS[pick(len(NOUNS))]}"
    number = 1
    while taken(f"{stem}-{number}"):
        number += 1
    return f"{stem}-{number}"
