"""Errors that must be reported to a user. Most parts raise them, so they stand below all others."""

from __future__ import annotations


class CannotStart(Exception):
    """The commands cannot be started; the message is for the user (exit record, executor_error)."""
