"""`.fairleadignore`: what of a folder stays behind when its code is sent; written as a .gitignore.

One file counts, in the folder that `repos` or `files` names. It also leaves files behind that git
tracks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from fairlead.configuration.convert import ConfigurationError

NAME = ".fairleadignore"
IsIgnored = Callable[[str], bool]
"""Answers for a path below the folder, with `/` at the end of a folder's."""


_OF_AN_EDITOR = re.compile(
    r".*~"  # backups of many editors
    r"|\..*\.sw[a-px]x?"  # swap files of vim and nano
    r"|\.#.*|#.*#"  # locks and saved changes of emacs
    r"|\.goutputstream-.*"  # a save of GNOME's editors
    r"|.*___jb_(?:tmp|old)___"  # a save of JetBrains' editors
)


def is_left_by_tools(path: str) -> bool:
    """Return whether an editor or Python made it beside a file, and no program of a job reads it:
    it comes and goes when a file is only opened, or run here."""
    *folders, name = path.rstrip("/").split("/")
    is_cache = "__pycache__" in (*folders, name)
    return is_cache or _OF_AN_EDITOR.fullmatch(name) is not None


def ignored_in(folder: Path, field: str, also: IsIgnored | None = None) -> IsIgnored | None:
    """Return what stays behind of the folder: what its file names, and what `also` does. None if
    there is neither. Raises ConfigurationError."""
    named = _named_in(folder, field)
    if also is None or named is None:
        return named or also
    return lambda name: also(name) or named(name)


def _named_in(folder: Path, field: str) -> IsIgnored | None:
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
