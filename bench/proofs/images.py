"""Any image runs a job and accepts SSH: busybox, one without a shell, musl, Debian 11 and 12, no
rights with a read-only root, an environment that would mislead our own programs.
"""

from __future__ import annotations

from bench.proofs._tests import prove


def main() -> None:
    prove(
        __doc__,
        "tests/e2e/runs/test_ssh_images.py",
        "tests/e2e/test_entrypoint_docker.py",
        "tests/e2e/test_runtime.py",
    )
