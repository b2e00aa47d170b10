"""Applies the output of `git diff --binary` to a fresh checkout, for images without git.

dulwich reads the diff but does not apply it: it treats a lone carriage return as the end of a line,
writes the index again for each file, leaves a folder where a file should be, and finds renamed
files only in the root folder.
"""

from __future__ import annotations

import os
import stat
import zlib
from contextlib import suppress
from typing import NamedTuple

from dulwich.index import (
    IndexEntry,
    InvalidPathError,
    build_file_from_blob,
    get_path_element_validator,
    get_symlink_fn,
    validate_path,
    verify_leading_dirs,
)
from dulwich.objects import S_ISGITLINK, Blob
from dulwich.pack import apply_delta
from dulwich.patch import FilePatch, apply_patch_hunks, git_base85_decode, parse_unified_diff
from dulwich.repo import Repo

from runner.code.errors import Failed

_PLAIN = 0o100644


class DoesNotApply(Failed):
    """The diff does not belong to this commit."""


class _File(NamedTuple):
    """A file after the patch; `is_new`: it must not exist before."""

    path: bytes
    mode: int
    content: bytes
    is_new: bool


class Patching:
    """The patch of one checkout that was not changed yet."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._root = os.fsencode(repo.path)
        self._config = repo.get_config_stack()
        self._index = repo.open_index()
        self._normalizer = repo.get_blob_normalizer(self._config)

    def apply(self, diff: bytes) -> None:
        """Apply the diff to the files alone, as `git apply` does; no file is changed unless all
        parts fit.

        Submodules stay as they are. Raises DoesNotApply and, for an invalid diff, ValueError and
        zlib.error.
        """
        gone: list[bytes] = []
        files: list[_File] = []
        for patch in parse_unified_diff(diff):
            old, new = _paths(patch)
            entry = None if old is None else self._entry(old)
            if S_ISGITLINK(patch.new_mode or 0) or (entry and S_ISGITLINK(entry.mode)):
                continue
            content = self._changed(patch, entry, new or old or b"")
            if old is not None and new != old and patch.copy_from is None:
                gone.append(old)
            if new is not None:
                mode = patch.new_mode or (entry.mode if entry else _PLAIN)
                files.append(_File(new, mode, content, is_new=new != old))
        for path in gone:
            self._remove(path)
        for file in files:
            self._write(file)

    def _entry(self, path: bytes) -> IndexEntry:
        try:
            entry = self._index[path]
        except KeyError:
            raise DoesNotApply(f"{_shown(path)} is not in the repository") from None
        assert isinstance(entry, IndexEntry), "a fresh checkout has no conflicts"
        return entry

    def _changed(self, patch: FilePatch, entry: IndexEntry | None, path: bytes) -> bytes:
        """Return the file's new content, as git stores it."""
        before = b"" if entry is None else self._repo.object_store[entry.sha].as_raw_string()
        if entry and patch.old_mode and stat.S_ISLNK(entry.mode) != stat.S_ISLNK(patch.old_mode):
            raise DoesNotApply(f"{_shown(path)} has another type in the repository")
        if patch.binary:
            return _binary(patch, before, path)
        after = apply_patch_hunks(patch, _lines(before))
        if after is None:
            raise DoesNotApply(f"{_shown(path)} has other content in the repository")
        return b"".join(after)

    def _remove(self, path: bytes) -> None:
        """Remove the file, and the folders that are then empty."""
        target = os.path.join(self._root, path)
        os.unlink(target)
        # rmdir(2) refuses the first folder that is not empty, which ends the loop.
        with suppress(OSError):
            while (target := os.path.dirname(target)) != self._root.rstrip(b"/"):
                os.rmdir(target)

    def _write(self, file: _File) -> None:
        target = os.path.join(self._root, file.path)
        self._check_parents(file.path)
        if file.is_new and os.path.lexists(target):
            raise DoesNotApply(f"{_shown(file.path)} is already in the repository")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        blob = Blob.from_string(file.content)
        if not stat.S_ISLNK(file.mode):
            blob = self._normalizer.checkout_normalize(blob, file.path)
        build_file_from_blob(blob, file.mode, target, symlink_fn=get_symlink_fn(self._config))

    def _check_parents(self, path: bytes) -> None:
        """Check that the path is within the repository, not in git's own folder, and passes no
        link."""
        try:
            # A patch can name `../x`, `.git/hooks/x` or a path below a link: git refuses them too
            # (git-apply(1), --unsafe-paths).
            if not validate_path(path, get_path_element_validator(self._config)):
                raise InvalidPathError(path)
            verify_leading_dirs(path, [], self._root)
        except InvalidPathError:
            raise DoesNotApply(f"{_shown(path)} leads out of the repository") from None


def _paths(patch: FilePatch) -> tuple[bytes | None, bytes | None]:
    """Return the paths before and after; None where there is no file."""
    if patch.rename_from is not None:
        return patch.rename_from, patch.rename_to
    if patch.copy_from is not None:
        return patch.copy_from, patch.copy_to
    if patch.old_path is None and patch.new_path is None:
        raise DoesNotApply("a part of the diff has no file name")
    return _stripped(patch.old_path), _stripped(patch.new_path)


def _stripped(path: bytes | None) -> bytes | None:
    """Return the path without git's prefix `a/` or `b/`."""
    return None if path is None else path.partition(b"/")[2]


def _binary(patch: FilePatch, before: bytes, path: bytes) -> bytes:
    if patch.binary_new is None:
        raise DoesNotApply(f"what changed in {_shown(path)} is missing (git diff --binary)")
    data = zlib.decompress(git_base85_decode(patch.binary_new))
    return b"".join(apply_delta(before, data)) if patch.binary_new_delta else data


def _lines(content: bytes) -> list[bytes]:
    *lines, rest = content.split(b"\n")
    return [line + b"\n" for line in lines] + ([rest] if rest else [])


def _shown(path: bytes) -> str:
    return repr(path.decode("utf-8", "backslashreplace"))
