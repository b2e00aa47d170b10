"""The kernel's setting of where core dumps go (core(5)), as a node and its jobs read it."""

from __future__ import annotations

FIX = "kernel.core_pattern=core.%p in /etc/sysctl.d keeps them"


def why_not_files(pattern: str) -> str | None:
    """Return why a process finds no file of its core dump; None: the kernel writes one."""
    # `|` is a pipe to a program of the node, `@` a socket of it: no file comes into being.
    if pattern.startswith(("|", "@")):
        return f"kernel.core_pattern gives core dumps to {pattern[1:].split(' ')[0]!r}"
    return None if pattern else "kernel.core_pattern is empty"
