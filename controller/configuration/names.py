"""Names of runs and nodes: which are valid, and generated ones for runs without a name."""

from __future__ import annotations

import re
from collections.abc import Callable

_RUN_NAME = re.compile(r"[a-z][a-z0-9-]{0,40}", re.ASCII)
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
