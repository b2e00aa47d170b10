"""One connection of a virtual machine to its metadata service: QEMU starts this for each (guestfwd)
with the connection as standard input and output.

Usage: metadata_relay.py SOCKET
"""

from __future__ import annotations

import os
import socket
import sys
import threading


def _copy(source: int, target: int) -> None:
    while content := os.read(source, 65536):
        while content:
            content = content[os.write(target, content) :]


def main() -> None:
    with socket.socket(socket.AF_UNIX) as service:
        service.connect(sys.argv[1])
        there = service.fileno()
        # It ends with the service's answer; a client that only waits must not keep it.
        threading.Thread(target=_copy, args=(0, there), daemon=True).start()
        _copy(there, 1)


if __name__ == "__main__":
    main()
