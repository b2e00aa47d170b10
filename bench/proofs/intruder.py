"""A job that is root in its container achieves nothing with links, pipes and thousands of files in
its folders, a forged runner, endless answers, or a forged end.
"""

from __future__ import annotations

from bench.proofs._tests import prove


def main() -> None:
    prove(
        __doc__,
        "tests/e2e/test_hostile_folder.py",
        "tests/e2e/runs/test_hostile_jobs.py",
        "tests/unit/runner/test_hostile_runner.py",
        "tests/unit/shim/test_runner_socket.py",
        "tests/unit/shim/test_safe_files.py",
    )
