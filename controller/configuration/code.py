"""How `repos`, `files` and `secrets` are written: dstack's short forms and the long ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from controller.configuration import schema
from controller.configuration.convert import convert
from controller.configuration.errors import ConfigurationError
from controller.configuration.units import shown

T = TypeVar("T")

_SCHEME = re.compile(r"(?P<url>(?:https?|ssh|git|file)://[^/:]*(?::\d+)?/[^:]*)(?::(?P<path>.+))?")
_SCP_LIKE = re.compile(r"(?P<url>[\w.-]+@[\w.-]+:[^:]+)(?::(?P<path>.+))?")
_WITH_LOGIN = re.compile(r"https?://[^/]*@")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", re.ASCII)
_REF = re.compile(r"[A-Za-z0-9_][\w./+@-]*", re.ASCII)
_BLOB = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

Hook = Callable[[type, Any], Any]


def is_url(text: str) -> bool:
    return bool(_SCHEME.fullmatch(text) or _SCP_LIKE.fullmatch(text))


def repos(value: object, hook: Hook) -> schema.Repos:
    found = [_repo(one, f"repos[{number}]", hook) for number, one in enumerate(_list(value))]
    places = [repo.path for repo in found]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise ConfigurationError(
                f"repos[{number}].path", f"{shown(place)} is the place of another repository too"
            )
    return schema.Repos(found)


def files(value: object, hook: Hook) -> schema.FileList:
    return schema.FileList(
        _file(one, f"files[{number}]", hook) for number, one in enumerate(_list(value))
    )


def secrets(value: object) -> schema.Secrets:
    if not isinstance(value, dict):
        raise ValueError("is neither a mapping nor a list of names that are set")
    for name, content in value.items():
        if not _SECRET_NAME.fullmatch(name):
            raise ConfigurationError(
                "secrets", f"{shown(name)} can't be a secret's name", schema.ALLOWED["secrets"]
            )
        if not isinstance(content, str):
            raise ConfigurationError(f"secrets.{name}", "is not a text", schema.ALLOWED["secrets"])
    return schema.Secrets(value)


def _repo(value: object, field: str, hook: Hook) -> schema.RepoFields:
    repo = _fields(_repo_of_text(value), schema.RepoFields, field, hook)
    if (repo.local_path is None) == (repo.url is None):
        raise ConfigurationError(field, "needs either local_path or url", schema.ALLOWED["repos"])
    if repo.url is not None and _WITH_LOGIN.match(repo.url):
        raise ConfigurationError(
            f"{field}.url", "holds a login, which everybody could read: use token_env instead"
        )
    _check(repo.url is None or is_url(repo.url), field, "url", repo.url)
    _check(repo.hash is None or _COMMIT.fullmatch(repo.hash), field, "hash", repo.hash)
    _check(repo.branch is None or _REF.fullmatch(repo.branch), field, "branch", repo.branch)
    if repo.local_path is not None and (repo.branch or repo.hash):
        name = "branch" if repo.branch else "hash"
        raise ConfigurationError(
            f"{field}.{name}", "goes with url: a local folder is taken as it is"
        )
    if repo.uploaded is not None:
        _check_blobs(field, repo.uploaded.diff, repo.uploaded.archive)
        if repo.uploaded.diff is not None and not (repo.url or repo.uploaded.url):
            raise ConfigurationError(
                f"{field}.uploaded.diff", "goes with url: an archive is taken as it is"
            )
    return repo


def _repo_of_text(value: object) -> object:
    if not isinstance(value, str):
        return value
    if _WITH_LOGIN.match(value):
        return {"url": value}
    match = _SCHEME.fullmatch(value) or _SCP_LIKE.fullmatch(value)
    if match is not None:
        return {"url": match["url"], **_path(match["path"])}
    local, _, path = value.partition(":")
    return {"local_path": local, **_path(path)}


def _file(value: object, field: str, hook: Hook) -> schema.FileFields:
    if isinstance(value, str):
        local, _, path = value.partition(":")
        value = {"local_path": local, **_path(path)}
    file = _fields(value, schema.FileFields, field, hook)
    if file.uploaded is not None:
        _check_blobs(field, file.uploaded[0])
    return file


def _path(text: str | None) -> dict[str, str]:
    return {"path": text} if text else {}


def _list(value: object) -> list[object] | tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("is not a list")
    return value


def _fields(value: object, type_: type[T], field: str, hook: Hook) -> T:
    if not isinstance(value, dict):
        allowed = schema.ALLOWED[field.partition("[")[0]]
        raise ConfigurationError(field, "is neither a text nor a mapping", allowed)
    return convert(value, type_, hook, within=field)


def _check(right: object, field: str, name: str, given: str | None) -> None:
    if not right:
        allowed = schema.ALLOWED[f"repos.{name}"]
        raise ConfigurationError(f"{field}.{name}", f"{shown(given)} is not right", allowed)


def _check_blobs(field: str, *blobs: str | None) -> None:
    for blob in blobs:
        if blob is not None and not _BLOB.fullmatch(blob):
            raise ConfigurationError(f"{field}.uploaded", f"{shown(blob)} is not a sha256")
