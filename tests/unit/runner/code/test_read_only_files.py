"""Files that are outputs of another run can be read, and not written to by mistake."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from runner.client import RunnerClient
from tests.unit.runner.harness import a_job, a_runner, exit_of, followed, payload


def a_tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, mode in (("deep/model", 0o666), ("run", 0o755)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = 3, mode
            archive.addfile(member, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "deep/model"
        archive.addfile(link)
    return packed.getvalue()


async def modes(client: RunnerClient, target: Path, keeps_for: float | None) -> bytes:
    tar = a_tar()
    digest = hashlib.sha256(tar).hexdigest()
    files = [{"path": str(target), "archive": digest, "read_only": True}]
    look = f"cd {target}; stat -c %a deep deep/model run; cat link"
    await client.submit(a_job(look, files=files, keeps_for=keeps_for))
    await client.put_code(digest, tar)
    await client.run()
    assert (await exit_of(client)).exit_code == 0
    return payload(await followed(client))


@pytest.mark.parametrize("keeps_for", [None, 0.0])
async def test_their_files_lose_the_right_to_be_written_also_when_tried_again(
    tmp_path: Path, keeps_for: float | None
) -> None:
    for name in ("first", "second"):
        async with a_runner(tmp_path / name) as (_, client):
            output = await modes(client, tmp_path / "volume", keeps_for)
            assert output.startswith(b"755\n444\n555\nabc")
