"""The bundle's name says what it is, and its checksum whether it is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.commands.hosts.bundle import read_bundle
from fairlead.cli.errors import CliError

NAME = "fairlead-node-0.1.0+4f2a-amd64.tar"


def test_version_and_architecture_are_in_its_name(tmp_path: Path) -> None:
    file = tmp_path / NAME
    file.write_bytes(b"x")
    bundle = read_bundle(file)
    assert (bundle.version, bundle.arch) == ("0.1.0+4f2a", "amd64")
    assert bundle.folder == "fairlead-node-0.1.0+4f2a"


def test_one_that_is_not_what_its_checksum_says_is_refused(tmp_path: Path) -> None:
    file = tmp_path / NAME
    file.write_bytes(b"x")
    (tmp_path / f"{NAME}.sha256").write_text(f"{'0' * 64}  {NAME}\n")
    with pytest.raises(CliError, match=r"does not match .*\.sha256"):
        read_bundle(file)


@pytest.mark.parametrize("name", ["bundle.tar", "fairlead-node-0.1.0.tar.gz", NAME])
def test_a_path_that_is_no_bundle_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(CliError, match="--bundle"):
        read_bundle(tmp_path / name)
