"""Shell commands for jobs of tests."""

from __future__ import annotations


def at_term(then: str) -> str:
    """Return a command that prints `ready`, waits, and does `then` at SIGTERM.

    Between fork(2) and execve(2), the child of a shell with a trap has the trap's handler: a signal
    to the whole group that comes then is forgotten, and the child lives until the grace is over.
    It is rare, and no test is to fail by it. So the trap ends the child by itself, and closes
    standard error first: else bash prints that it was killed. It does not wait for the child: dash
    may have taken the only SIGCHLD already, and then sleeps until another child ends.
    """
    return f"trap 'exec 2> /dev/null; kill -9 $!; {then}' TERM; sleep 3600 & echo ready; wait"
