"""What all listening sockets have in common."""

from __future__ import annotations

BACKLOG = 4096
"""Connections that may wait until they are accepted. A unix socket refuses those beyond (EAGAIN),
and each hop of a burst of requests to a service gets its connections at once. Linux allows no more
than `net.core.somaxconn`, which is 4096 since 5.4."""
