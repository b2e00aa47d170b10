"""What simulated jobs leave: every other one that ran leaves a tar with one file."""

from __future__ import annotations

import io
import tarfile


def leaves_outputs(task_id: str) -> bool:
    return sum(task_id.encode()) % 2 == 0


def outputs_of(task_id: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("result")
        member.size = len(task_id)
        archive.addfile(member, io.BytesIO(task_id.encode()))
    return packed.getvalue()
