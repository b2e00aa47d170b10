"""A secret is where its job needs it and nowhere else: the proof plants secrets, then looks for
them in records, logs, labels, command lines, answers, errors and metrics.
"""

from __future__ import annotations

from bench.proofs._tests import prove


def main() -> None:
    prove(
        __doc__,
        "tests/e2e/runs/test_secrets.py",
        "tests/unit/runner/test_preparation.py",
        "tests/unit/runner/test_masking.py",
    )
