"""A shim whose machine is of a cloud that takes it back: it asks a double of the cloud's metadata
service, where a real one would ask 169.254.169.254.

    python -m tests.support.recalled_shim ec2|gcp PORT OPTIONS…
"""

from __future__ import annotations

import sys

from shim import daemon
from shim import main as shim
from shim.recall import Ec2, Gcp

_CLOUDS = {"ec2": Ec2, "gcp": Gcp}


def main() -> None:
    cloud, port = sys.argv[1], int(sys.argv[2])
    # No machine of the tests has the firmware of a cloud's.
    found = _CLOUDS[cloud]("127.0.0.1", port)
    setattr(daemon, "metadata_here", lambda: found)  # noqa: B010
    del sys.argv[1:3]
    shim.main()


if __name__ == "__main__":
    main()
