"""Packs the code of a run: its `repos` and `files` become files to upload.

Content that cannot be packed is refused before anything is sent.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.runs.common import RunFields
from fairlead.configuration.values.files import FileFields, RepoFields
from fairlead.files import archive
from fairlead.files.git import (
    GitError,
    as_https,
    difference,
    git_files,
    is_ssh,
    known_hosts,
    look_at_git,
)
from fairlead.files.ignored import IsIgnored, ignored_in
from fairlead.wire.blobs import Part


class Upload(msgspec.Struct, frozen=True):
    """A file to upload. `parts`: all of its bytes, so that only what is new of them is sent; none:
    it is sent whole."""

    file: Path
    parts: tuple[Part, ...] = ()


class Packed(msgspec.Struct):
    """A packed configuration. `uploads`: by their sha256, in the folder given to `pack`. `notes`:
    what its user may not have meant."""

    configuration: dict[str, Any]
    uploads: dict[str, Upload]
    notes: list[str]


def pack(
    written: dict[str, Any],
    parsed: RunFields,
    base: Path,
    environ: Mapping[str, str],
    scratch: Path,
    also_ignored: IsIgnored | None = None,
) -> Packed:
    """Pack a configuration's code. Paths are relative to `base`. Raises ConfigurationError."""
    packer = _Packer(base, environ, scratch, also_ignored)
    return Packed(_filled(written, parsed, packer), packer.uploads, packer.notes)


def checked(
    written: dict[str, Any], parsed: RunFields, base: Path, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the configuration as packed, with digests of nothing. Nothing is packed. Raises
    ConfigurationError as `pack` does."""
    return _filled(written, parsed, _Checker(base, environ, Path()))


def _filled(written: dict[str, Any], parsed: RunFields, packer: _Packer) -> dict[str, Any]:
    filled = dict(written)
    if parsed.repos:
        filled["repos"] = [
            packer.repo(repo, f"repos[{number}]") for number, repo in enumerate(parsed.repos)
        ]
    if parsed.files:
        filled["files"] = [
            packer.file(file, f"files[{number}]") for number, file in enumerate(parsed.files)
        ]
    return filled


class _Packer:
    def __init__(
        self,
        base: Path,
        environ: Mapping[str, str],
        scratch: Path,
        also_ignored: IsIgnored | None = None,
    ) -> None:
        self._base = base
        self._environ = environ
        self._scratch = scratch
        self._also_ignored = also_ignored
        self.uploads: dict[str, Upload] = {}
        self.notes: list[str] = []

    def repo(self, repo: RepoFields, field: str) -> dict[str, Any]:
        uploaded: dict[str, Any] = {}
        if repo.local_path is not None:
            folder = self._local(repo.local_path, f"{field}.local_path")
            if not folder.is_dir():
                raise ConfigurationError(f"{field}.local_path", f"{folder} is not a folder")
            uploaded = self._folder(folder, field)
        uploaded |= self._keys(repo, field, uploaded.get("url") or repo.url)
        shown = {
            name: value
            for name, value in msgspec.structs.asdict(repo).items()
            if value is not None and name != "uploaded"
        }
        return {**shown, "uploaded": uploaded}

    def file(self, file: FileFields, field: str) -> dict[str, Any]:
        local = self._local(file.local_path, f"{field}.local_path")
        target = file.path or self._target(file.local_path, field)
        if not local.exists():
            raise ConfigurationError(f"{field}.local_path", f"{local} does not exist")
        if local.is_dir():
            folder, members = target, self._tree(local, field)
        else:
            folder, name = posixpath.split(target.rstrip("/"))
            members = [(name, local)]
        digest = self._archive(members, f"{field}.local_path")
        shown = {"local_path": file.local_path, "path": target}
        return {**shown, "uploaded": [digest, folder or "."]}

    def _folder(self, folder: Path, field: str) -> dict[str, Any]:
        try:
            found = look_at_git(folder)
            if found is None or found.url is None or found.commit is None:
                members = self._tree(folder, field)
                if found is None:
                    self.notes.append(_without_git(folder, len(members), field))
                return {"archive": self._archive(members, field)}
            is_ignored = ignored_in(folder, f"{field}.local_path", self._also_ignored)
            diff = difference(found.root, found.commit, is_ignored)
        except GitError as error:
            raise ConfigurationError(f"{field}.local_path", str(error)) from None
        uploaded = {"url": found.url, "hash": found.commit}
        return uploaded | ({"diff": self._blob(diff)} if diff else {})

    def _tree(self, folder: Path, field: str) -> list[tuple[str, Path]]:
        return _tree(folder, f"{field}.local_path", self._also_ignored)

    def _keys(self, repo: RepoFields, field: str, url: str | None) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        if repo.token_env is not None:
            if repo.token_env not in self._environ:
                raise ConfigurationError(
                    f"{field}.token_env", f"{repo.token_env!r} is not set in your environment"
                )
            keys["token"] = self._environ[repo.token_env]
        has_token = repo.token_env is not None or repo.token is not None
        if has_token and url is not None and is_ssh(url):
            keys["url"] = as_https(url)
        if repo.key_file is not None:
            path = self._local(repo.key_file, f"{field}.key_file")
            try:
                keys["private_key"] = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError):
                raise ConfigurationError(f"{field}.key_file", f"{path} can't be read") from None
        if url is not None and is_ssh(url) and not has_token:
            keys |= {"known_hosts": known} if (known := known_hosts(url)) else {}
        return keys

    def _local(self, text: str, field: str) -> Path:
        try:
            return self._base / Path(text).expanduser()
        # pathlib raises it when neither HOME nor the password file knows a home folder.
        except RuntimeError:
            raise ConfigurationError(field, "there is no home folder for `~`") from None

    def _target(self, local: str, field: str) -> str:
        """Return where a file without a given path goes: the same path below the working folder."""
        if os.path.isabs(local):
            return local
        target = posixpath.normpath(local)
        if local.startswith("~") or target.startswith(".."):
            raise ConfigurationError(field, f"give its path in the container: {local}:/some/path")
        return target

    def _archive(self, members: Iterable[tuple[str, Path]], field: str) -> str:
        path = self._scratch / f"archive-{len(os.listdir(self._scratch))}"
        digest, parts = archive.write(path, members, field)
        self.uploads[digest] = Upload(path, parts)
        return digest

    def _blob(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        path = self._scratch / digest
        path.write_bytes(content)
        self.uploads[digest] = Upload(path)
        return digest


def _tree(folder: Path, field: str, also_ignored: IsIgnored | None) -> list[tuple[str, Path]]:
    """Return all files below the folder except git's own; in a git repository those that git does
    not ignore. What `.fairleadignore` names stays behind. Raises ConfigurationError."""
    is_ignored = ignored_in(folder, field, also_ignored)
    try:
        if look_at_git(folder) is not None:
            names = git_files(folder, is_ignored)
            # The index also lists submodules, and files that were deleted since.
            return [(name, folder / name) for name in names if _is_there(folder / name)]
    except GitError as error:
        raise ConfigurationError(field, str(error)) from None
    found: list[tuple[str, Path]] = []
    for path, folders, files in os.walk(folder):
        below = Path(path).relative_to(folder)
        folders[:] = [
            name
            # In this order, the same files make the same archive, which need not be sent again.
            for name in sorted(folders)
            if name != ".git"
            and not (is_ignored and is_ignored(_folder_name(folder, below / name)))
        ]
        for name in sorted([*folders, *files]):
            source = below / name
            if name in folders or not (is_ignored and is_ignored(source.as_posix())):
                found.append((source.as_posix(), folder / source))
    return found


def _without_git(folder: Path, count: int, field: str) -> str:
    """Return what to tell of a folder of `repos` that is sent as it is."""
    has_git = shutil.which("git") is not None
    why = f"{folder.resolve()} is in no git repository" if has_git else "git is not installed here"
    files = "its one entry is" if count == 1 else f"all its {count} entries are"
    return f"{field}: {why}: {files} sent; a file .fairleadignore leaves out what it names"


def _folder_name(root: Path, below: Path) -> str:
    """Return the path of a folder as patterns see it: a link to a folder is no folder."""
    return below.as_posix() + ("" if (root / below).is_symlink() else "/")


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


class _Checker(_Packer):
    """Goes through what would be packed, and packs nothing."""

    def _folder(self, folder: Path, field: str) -> dict[str, Any]:
        try:
            found = look_at_git(folder)
        except GitError as error:
            raise ConfigurationError(f"{field}.local_path", str(error)) from None
        if found is not None and found.url is not None and found.commit is not None:
            return {"url": found.url, "hash": found.commit}
        return {"archive": self._archive(self._tree(folder, field), field)}

    def _keys(self, repo: RepoFields, field: str, url: str | None) -> dict[str, Any]:
        keys = super()._keys(repo, field, url)
        return keys | {name: "-" for name in ("token", "private_key") if name in keys}

    def _archive(self, members: Iterable[tuple[str, Path]], field: str) -> str:
        for name, source in members:
            info = archive.member(name, source, field)
            if info.isreg() and not os.access(source, os.R_OK):
                raise ConfigurationError(field, f"{source} can't be read: Permission denied")
        return "0" * 64
