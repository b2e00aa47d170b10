"""What a job brings and what is kept of it: repositories, files, buckets, outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

import msgspec

from fairlead.configuration.convert import ConfigurationError, convert
from fairlead.configuration.field import Field, mapping_of, own_fields
from fairlead.configuration.text.stored_secrets import is_reference
from fairlead.configuration.values.commands import STRING, FolderName, Text
from fairlead.configuration.values.units import shown
from fairlead.wire.bucket_urls import parse_bucket, parse_endpoint
from fairlead.wire.job import BucketMode, IfFolderExists

T = TypeVar("T")
_SCHEME = re.compile(r"(?P<url>(?:https?|ssh|git|file)://[^/:]*(?::\d+)?/[^:]*)(?::(?P<path>.+))?")
_SCP_LIKE = re.compile(r"(?P<url>[\w.-]+@[\w.-]+:[^:]+)(?::(?P<path>.+))?")
_WITH_LOGIN = re.compile(r"https?://[^/]*@")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", re.ASCII)
_REF = re.compile(r"[A-Za-z0-9_][\w./+@-]*", re.ASCII)
_BLOB = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MAX_OUTPUT_PATH = 1024
_PATH_ALLOWED = "a path in the container, absolute or relative to working_dir"


class UploadedRepo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The results and uploads of `fairlead apply`; blobs are named by their sha256."""

    url: str | None = None
    hash: str | None = None
    diff: str | None = None
    archive: str | None = None
    token: str | None = None
    private_key: str | None = None
    known_hosts: str | None = None

    def __repr__(self) -> str:
        return f"UploadedRepo(url={self.url!r})"


class RepoFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the `repos`. `token` and `private_key` are names of stored secrets, never values."""

    local_path: Annotated[
        Text | None, Field("a folder of this machine, such as . or ../project")
    ] = None
    url: Annotated[
        Text | None, Field("a URL that git can fetch: https, ssh (git@host:path too), git, file")
    ] = None
    branch: Annotated[Text | None, Field("the name of a branch or tag")] = None
    hash: Annotated[Text | None, Field("a full commit id (40 hexadecimal digits)")] = None
    path: Annotated[Text, Field(_PATH_ALLOWED)] = "."
    if_exists: IfFolderExists = IfFolderExists.ERROR
    token_env: Annotated[
        Text | None,
        Field("the name of a variable of your environment that holds an access token"),
    ] = None
    key_file: Annotated[Text | None, Field("the path of a private SSH key on this machine")] = None
    token: Annotated[
        Text | None,
        Field("${{ secrets.NAME }}, the stored secret that holds an access token"),
    ] = None
    private_key: Annotated[
        Text | None,
        Field("${{ secrets.NAME }}, the stored secret that holds a private SSH key"),
    ] = None
    uploaded: Annotated[UploadedRepo | None, Field(is_filled_in=True)] = None


class Repos(tuple[RepoFields, ...]):
    __slots__ = ()
    FIELDS = RepoFields
    ALLOWED = (
        "a list of FOLDER[:PATH] or URL[:PATH], or of mappings with local_path or url,"
        " branch, hash, path, if_exists, token_env, key_file, token, private_key"
    )
    SCHEMA: ClassVar[dict[str, Any]] = {
        "type": "array",
        "items": {"anyOf": [STRING, mapping_of(RepoFields)]},
    }

    @classmethod
    def read(cls, value: object) -> Self:
        found = [_repo(one, f"repos[{number}]") for number, one in enumerate(_list(value))]
        paths = [repo.path for repo in found]
        for number, path in enumerate(paths):
            if path in paths[:number]:
                raise ConfigurationError(
                    f"repos[{number}].path", f"{shown(path)} is also the path of another repository"
                )
        return cls(found)


def is_url(text: str) -> bool:
    return bool(_SCHEME.fullmatch(text) or _SCP_LIKE.fullmatch(text))


def _repo(value: object, field: str) -> RepoFields:
    repo = _fields(_repo_of_text(value), RepoFields, field, Repos.ALLOWED)
    if (repo.local_path is None) == (repo.url is None):
        raise ConfigurationError(field, "needs either local_path or url", Repos.ALLOWED)
    if repo.url is not None and _WITH_LOGIN.match(repo.url):
        raise ConfigurationError(
            f"{field}.url", "contains a login, which other users could read: use token_env instead"
        )
    _check(repo.url is None or is_url(repo.url), field, "url", repo.url)
    _check(repo.hash is None or _COMMIT.fullmatch(repo.hash), field, "hash", repo.hash)
    _check(repo.branch is None or _REF.fullmatch(repo.branch), field, "branch", repo.branch)
    _check_credentials(repo, field)
    if repo.local_path is not None and (repo.branch or repo.hash):
        name = "branch" if repo.branch else "hash"
        raise ConfigurationError(f"{field}.{name}", "needs url: a local folder is used as it is")
    if repo.uploaded is not None:
        _check_blobs(field, repo.uploaded.diff, repo.uploaded.archive)
        if repo.uploaded.diff is not None and not (repo.url or repo.uploaded.url):
            raise ConfigurationError(
                f"{field}.uploaded.diff", "needs url: an archive is used as it is"
            )
    return repo


def _check_credentials(repo: RepoFields, field: str) -> None:
    """A value here would be stored with the run and shown with it, so only a name is taken."""
    for name, given, other in (
        ("token", repo.token, repo.token_env),
        ("private_key", repo.private_key, repo.key_file),
    ):
        if given is not None and not is_reference(given):
            allowed = own_fields(RepoFields)[name].allowed
            raise ConfigurationError(f"{field}.{name}", "is not a stored secret's name", allowed)
        if given is not None and other is not None:
            elsewhere = "token_env" if name == "token" else "key_file"
            raise ConfigurationError(f"{field}.{name}", f"is given, and {elsewhere} too")


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


def _check(right: object, field: str, name: str, given: str | None) -> None:
    if not right:
        allowed = own_fields(RepoFields)[name].allowed
        raise ConfigurationError(f"{field}.{name}", f"{shown(given)} is invalid", allowed)


class FileFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the `files`. `uploaded`: the blob's sha256, and the folder into which it is
    unpacked."""

    local_path: Annotated[
        Text, Field("a file or folder of this machine", called=("files.src", "files.source"))
    ]
    path: Annotated[Text | None, Field(_PATH_ALLOWED)] = None
    uploaded: Annotated[tuple[Text, Text] | None, Field(is_filled_in=True)] = None


class FileList(tuple[FileFields, ...]):
    __slots__ = ()
    FIELDS = FileFields
    ALLOWED = "a list of LOCAL_PATH[:PATH], or of mappings with local_path and path"
    SCHEMA: ClassVar[dict[str, Any]] = {
        "type": "array",
        "items": {"anyOf": [STRING, mapping_of(FileFields)]},
    }

    @classmethod
    def read(cls, value: object) -> Self:
        return cls(_file(one, f"files[{number}]") for number, one in enumerate(_list(value)))


def _file(value: object, field: str) -> FileFields:
    if isinstance(value, str):
        local, _, path = value.partition(":")
        value = {"local_path": local, **_path(path)}
    file = _fields(value, FileFields, field, FileList.ALLOWED)
    if file.uploaded is not None:
        _check_blobs(field, file.uploaded[0])
    return file


def _path(text: str | None) -> Mapping[str, str]:
    return {"path": text} if text else {}


def _list(value: object) -> list[object] | tuple[object, ...]:
    if not isinstance(value, list | tuple):
        how = ": begin its line with `- `" if isinstance(value, str) else ""
        raise ValueError(f"is not a list{how}")
    return value


def _fields(value: object, type_: type[T], field: str, allowed: str) -> T:
    if not isinstance(value, dict):
        raise ConfigurationError(field, "must be a string or a mapping", allowed)
    return convert(value, type_, within=field)


def _check_blobs(field: str, *blobs: str | None) -> None:
    for blob in blobs:
        if blob is not None and not _BLOB.fullmatch(blob):
            raise ConfigurationError(f"{field}.uploaded", f"{shown(blob)} is not a sha256")


class BucketUrl(str):
    """s3://BUCKET/PREFIX"""

    __slots__ = ()
    ALLOWED = "s3://BUCKET or s3://BUCKET/PREFIX"
    SCHEMA: ClassVar[dict[str, Any]] = {"type": "string", "pattern": "^s3://"}

    @classmethod
    def read(cls, value: object) -> Self:
        if not isinstance(value, str):
            raise ValueError("must be a string such as s3://BUCKET/PREFIX")
        parse_bucket(value)
        return cls(value)


class BucketEndpoint(str):
    """https://HOST[:PORT]"""

    __slots__ = ()
    ALLOWED = "https://HOST[:PORT] of a storage that is not AWS"
    SCHEMA: ClassVar[dict[str, Any]] = {"type": "string", "pattern": "^https?://"}

    @classmethod
    def read(cls, value: object) -> Self:
        if not isinstance(value, str):
            raise ValueError("must be a string such as https://HOST")
        return cls(parse_endpoint(value))


class BucketFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the `buckets`, which a job gets as a folder."""

    url: BucketUrl
    path: Annotated[FolderName, Field("an absolute path, such as /data")]
    mode: Annotated[BucketMode, Field("read or write-back")] = BucketMode.READ
    endpoint: BucketEndpoint | None = None


class OutputPath(str):
    """A path or pattern of what is kept of a job."""

    __slots__ = ()
    SCHEMA = STRING

    @classmethod
    def read(cls, value: object) -> Self:
        if not isinstance(value, str) or not value.strip():
            raise ValueError("must be a string with a path")
        if ".." in value.split("/"):
            raise ValueError(f"{shown(value)} goes up by ..; write an absolute path")
        if value.startswith("~") or "$" in value:
            raise ValueError(f"{shown(value)}: ~ and variables are not filled in; write the path")
        if len(value.encode()) > _MAX_OUTPUT_PATH:
            raise ValueError(f"is longer than {_MAX_OUTPUT_PATH} bytes")
        return cls(value)
