"""Hints about a field that does not exist: the field that is meant, or what to do instead.

A wrong guess costs more than none, so only similar names are suggested.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

_ALIKE = 0.75
_MAX_NAMED = 12


def not_a_field(
    path: str,
    names: Collection[str],
    called: Mapping[str, str],
    hints: Mapping[str, str],
    *,
    is_in_schema: bool = True,
) -> tuple[str, str | None]:
    """Return the sentence about the last part of `path`, which is none of the allowed `names`, and
    what is allowed. A long list of names would hide the one that was meant.

    `called`: the right path for names of other systems; `hints`: what is said of names that are no
    fields here. Both are by the path without numbers of entries. `is_in_schema`: `fairlead schema`
    describes the names, so that many of them need not be listed.
    """
    few = ", ".join(sorted(names)) if names else None
    if is_in_schema and len(names) > _MAX_NAMED:
        few = None
    meant = called.get(path)
    if meant is not None and meant not in hints:
        return f"is not a field; write {meant}", few
    if path in hints:
        return f"is not a field: {hints[path]}", few
    import difflib  # for a wrong field alone

    alike = difflib.get_close_matches(path.rpartition(".")[2], list(names), n=1, cutoff=_ALIKE)
    if alike:
        return f"is not a field; did you mean {alike[0]}?", few
    name = path.rpartition(".")[2]
    if name.isdecimal():
        # YAML reads {cpu: 1,5} as cpu: 1 and a field named 5.
        return f"is not a field; a number with a decimal comma is written as 1.{name}", few
    if not names:
        return "is not a field", None
    return "is not a field", few or f"one of {len(names)} names that `fairlead schema` describes"
