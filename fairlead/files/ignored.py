"""`.fairleadignore`: what of a folder stays behind when its code is sent; written as a .gitignore.

One file counts, in the folder that `repos` or `files` names. It also leaves files behind that git
tracks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fairlead.configuration.convert import ConfigurationError

NAME = ".fairleadignore"
IsIgnored = Callable[[str], bool]
"""Answers for a path below the folder, with `/` at the end of a folder's."""


def ignored_in(folder: Path, field: str) -> IsIgnored | None:
    """Return what the folder's file leaves behind; None without one. Raises ConfigurationError."""
    file = folder / NAME
    try:
        lines = file.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise ConfigurationError(field, f"{file} can't be read: {why}") from None
    from pathspec import GitIgnoreSpec  # few folders have the file

    try:
        patterns = GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise ConfigurationError(field, f"{file}: {error}") from None
    known: dict[str, bool] = {"": False}

    def is_ignored(name: str) -> bool:
        """As git does: nothing below an ignored folder comes back."""
        if name not in known:
            parent = name.rstrip("/").rpartition("/")[0]
            above = is_ignored(f"{parent}/" if parent else "")
            known[name] = above or patterns.match_file(name)
        return known[name]

    return is_ignored
