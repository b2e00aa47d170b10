"""Keeps the image's libraries out of the process; import this module first, which is why it is one.

asyncssh (2.24) asks the system for two optional libraries (libnettle, liboqs) by five names, and
has no way to leave that out. In a job's container the answer would be a file of the image, made for
another C library.
"""

from __future__ import annotations

import ctypes.util


def _nothing_of_the_image(name: str) -> None:
    return None


ctypes.util.find_library = _nothing_of_the_image
