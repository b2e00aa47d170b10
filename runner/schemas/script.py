"""How a job's commands become one script, and how long what a program is given may be.

It is part of the contract because who submits has to refuse what no runner could start.
"""

from __future__ import annotations

from collections.abc import Iterable

LONGEST_ARGUMENT = 128 * 1024 - 1
"""Bytes of one argument or of one `NAME=VALUE`: Linux's MAX_ARG_STRLEN less the NUL at its end."""


def script(commands: Iterable[str]) -> str:
    """One script in which each command must succeed for the next to run, and `cd`, `export` and
    functions carry over. The last command is left bare so that a shell can become it."""
    check = "\n\ncase $? in 0) ;; *) exit $? ;; esac\n"
    return check.join(commands)
