"""Durations as options have them."""

from __future__ import annotations

from fairlead.cli.errors import EXIT_USAGE, CliError


def seconds_of(text: str | None, option: str) -> float | None:
    """Return the duration of an option, in seconds. Raises CliError."""
    if text is None:
        return None
    # Few commands are given a duration.
    from fairlead.configuration.values.units import DURATION_ALLOWED, parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise CliError(f"{option}: {error}, give {DURATION_ALLOWED}", EXIT_USAGE) from None
