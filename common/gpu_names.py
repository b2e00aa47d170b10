"""Matches GPUs by name: the scheduler and the shim agree on which GPU a job's names ask for.

A part of a GPU is a MIG instance so far. Its name has the word MIG, and a job gets a part only if
the job asks for a name with that word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations

_WORD = re.compile(r"[a-z0-9]+")
_PART = "mig"


def is_part(name: str, parent: str | None) -> bool:
    """Return whether this is a part of the GPU `parent`. A part whose node was stored by an early
    version has no parent."""
    return parent is not None or _PART in _WORD.findall(name.lower())


def is_named(name: str, parent: str | None, asked: Sequence[str]) -> bool:
    """Return whether a job that asks for these names (none: any whole GPU) may have this GPU."""
    if not asked:
        return not is_part(name, parent)
    wanted = [each for each in asked if _PART in each.lower() or not is_part(name, parent)]
    return any(is_called(name, each) for each in wanted)


def is_called(name: str, asked: str) -> bool:
    """Return whether `asked` is a sequence of words of the GPU's name, however they are joined.

    RTX4090 matches "NVIDIA GeForce RTX 4090"; L4 does not match "NVIDIA L40S". Without the word MIG
    in `asked`, only a whole GPU matches.
    """
    words = _WORD.findall(name.lower())
    wanted = "".join(_WORD.findall(asked.lower()))
    if _PART in words and _PART not in wanted:
        return False
    spans = combinations(range(len(words) + 1), 2)
    return any("".join(words[start:end]) == wanted for start, end in spans)
