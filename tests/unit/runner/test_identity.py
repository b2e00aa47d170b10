import os
from pathlib import Path

import pytest

from runner.errors import CannotStart
from runner.processes import identity
from runner.processes.identity import Identity, resolve

PASSWD = (
    "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbroken\nx:x:a:b:c:d:e\n"
)
GROUP = "root:x:0:\nann:x:1000:\nvideo:x:44:bob,ann\ndocker:x:999:bob\n"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(PASSWD)
    (tmp_path / "etc/group").write_text(GROUP)
    return tmp_path


ANN = Identity(uid=1000, gid=1000, groups=(44,), name="ann", home="/home/ann")


@pytest.mark.parametrize("user", ["ann", "1000"])
def test_an_account_brings_its_groups_and_home(image: Path, user: str) -> None:
    assert resolve(user, image) == ANN


@pytest.mark.parametrize("user", ["ann:docker", "1000:999"])
def test_a_group_of_the_spec_replaces_all_others(image: Path, user: str) -> None:
    expected = Identity(uid=1000, gid=999, groups=(), name="ann", home="/home/ann")
    assert resolve(user, image) == expected


@pytest.mark.parametrize(
    ("given", "groups"), [([0, 4711], (44, 4711)), ([0], (44,))], ids=["given", "not given"]
)
def test_a_user_is_in_the_groups_of_the_gpus_that_the_container_got(
    image: Path, monkeypatch: pytest.MonkeyPatch, given: list[int], groups: tuple[int, ...]
) -> None:
    (image / "dev/dri").mkdir(parents=True)
    for name in ("kfd", "dri/renderD129"):
        (image / "dev" / name).touch()
    monkeypatch.setattr(identity, "_group_of", lambda file: 4711)
    monkeypatch.setattr(os, "getgroups", lambda: given)
    assert resolve("ann", image).groups == groups


def test_a_uid_without_an_account_is_fine(image: Path) -> None:
    assert resolve("4242", image) == Identity(uid=4242, gid=0, name="4242", home="/")


def test_an_image_without_accounts_knows_uids_only(tmp_path: Path) -> None:
    assert resolve("7:8", tmp_path) == Identity(uid=7, gid=8, name="7", home="/")


@pytest.mark.parametrize(
    ("user", "words"),
    [("eve", "user 'eve'"), ("ann:wheel", "group 'wheel'"), ("99999999999", "user '99999999999'")],
)
def test_an_unknown_user_or_group_is_named(image: Path, user: str, words: str) -> None:
    with pytest.raises(CannotStart, match=words):
        resolve(user, image)
