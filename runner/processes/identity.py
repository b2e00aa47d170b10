"""The job's user: `user` of the spec or the image, looked up in the image's own files.

The files are read directly. The runner's libc is not the image's, so its name service would look in
places that do not exist or load code of the image.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from runner.errors import CannotStart

# The number above it is -1, by which chown(2) and setresuid(2) change nothing.
_MAX_ID = 2**32 - 2


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    name: str
    home: str


class _Account(msgspec.Struct, frozen=True):
    name: str
    uid: int
    gid: int
    home: str


class _Group(msgspec.Struct, frozen=True):
    name: str
    gid: int
    members: frozenset[str]


def current_identity(root: Path = Path("/")) -> Identity:
    """Return this process's user; it is used when neither spec nor image name one."""
    uid = os.getuid()
    account = next((a for a in _accounts(root) if a.uid == uid), None)
    name, home = (account.name, account.home) if account else (str(uid), "/")
    return Identity(uid=uid, gid=os.getgid(), groups=tuple(os.getgroups()), name=name, home=home)


def resolve(user: str, root: Path = Path("/")) -> Identity:
    """Return the identity of `NAME|UID[:GROUP|GID]`. Raises CannotStart with what is unknown.

    A group in `user` replaces all others but those of the job's GPUs; a uid without an account has
    group 0.
    """
    who, colon, which = user.partition(":")
    account = _find_account(who, root)
    if account is None:
        uid = _number(who)
        if uid is None:
            raise CannotStart(f"user {who!r} is not in the image's /etc/passwd")
        account = _Account(str(uid), uid, 0, "/")
    gid = _find_gid(which, root) if colon else account.gid
    memberships = [] if colon else _groups(root)
    named = (g.gid for g in memberships if account.name in g.members)
    groups = tuple(dict.fromkeys((*named, *_of_gpus(root))))
    return Identity(
        uid=account.uid, gid=gid, groups=groups, name=account.name, home=account.home or "/"
    )


def _of_gpus(root: Path) -> Iterator[int]:
    """Yield the groups that may use the job's GPUs and that the engine gave to the container. The
    image does not know them: its `render` has another number than the node's."""
    ours = set(os.getgroups()) - {0}
    for file in (root / "dev/kfd", *sorted((root / "dev/dri").glob("renderD*"))):
        if file.exists() and (gid := _group_of(file)) in ours:
            yield gid


def _group_of(file: Path) -> int:
    return file.stat().st_gid


def _find_account(who: str, root: Path) -> _Account | None:
    accounts = _accounts(root)
    by_name = next((a for a in accounts if a.name == who), None)
    if by_name is not None:
        return by_name
    uid = _number(who)
    return next((a for a in accounts if a.uid == uid), None)


def _find_gid(which: str, root: Path) -> int:
    by_name = next((g.gid for g in _groups(root) if g.name == which), None)
    gid = by_name if by_name is not None else _number(which)
    if gid is None:
        raise CannotStart(f"group {which!r} is not in the image's /etc/group")
    return gid


def _number(text: str) -> int | None:
    if text.isascii() and text.isdecimal() and int(text) <= _MAX_ID:
        return int(text)
    return None


def _rows(path: Path, columns: int) -> list[list[str]]:
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        # An image made from scratch has no /etc/passwd and no /etc/group.
        return []
    rows = (line.split(":") for line in text.splitlines())
    return [row for row in rows if len(row) >= columns]


def _accounts(root: Path) -> list[_Account]:
    return [
        _Account(row[0], int(row[2]), int(row[3]), row[5])
        for row in _rows(root / "etc/passwd", 6)
        if _number(row[2]) is not None and _number(row[3]) is not None
    ]


def _groups(root: Path) -> list[_Group]:
    return [
        _Group(row[0], int(row[2]), frozenset(filter(None, row[3].strip().split(","))))
        for row in _rows(root / "etc/group", 4)
        if _number(row[2]) is not None
    ]
