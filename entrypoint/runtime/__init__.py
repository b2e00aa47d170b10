"""Builds the interpreter that is mounted read-only into every container.

A user's image may have no Python, no shell, musl or an old glibc, and a hostile environment. So the
runner has its own CPython, loader and C library. The result works only where it is mounted, at
`MOUNT_PATH`. Two builds from the same inputs are equal byte for byte.
"""

MOUNT_PATH = "/opt/fairlead/runtime"
LAUNCHER = "bin/fairlead-entrypoint"
"""Path of the static program, below `MOUNT_PATH`, that a container starts with."""
