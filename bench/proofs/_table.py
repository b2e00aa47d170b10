"""Prints a proof's result in the form that all proofs share."""

from __future__ import annotations

from collections.abc import Iterable


def conclude(title: str, figures: Iterable[tuple[str, object]], broken: Iterable[str]) -> None:
    """Print the figures. Raises SystemExit(1) when a promise was broken."""
    print(f"| {title} | |\n| --- | ---: |")
    for name, value in figures:
        print(f"| {name} | {value} |")
    violations = list(broken)
    print(f"| violations | {len(violations)} |")
    for violation in violations:
        print(f"VIOLATION: {violation}")
    if violations:
        raise SystemExit(1)
