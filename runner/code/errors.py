"""Why code cannot be put in its place."""

from __future__ import annotations


class BadArchive(Exception):
    """The archive is damaged or tries what an archive of code has no reason to; the text names the
    entry, for the user."""


class Failed(Exception):
    """What the runtime's own git could not do: a sentence for the user."""


class Abandoned(Exception):
    """The job was stopped while its code was being prepared."""
