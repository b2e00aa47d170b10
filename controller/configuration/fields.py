"""Fields with a short and a long form: code, constraints, fleets, schedules, volumes.

The short forms are dstack's. A ValueError holds the sentence for the user; the caller adds the
field's path.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from common.object_storage import parse_bucket, parse_endpoint
from controller.configuration import schema
from controller.configuration.convert import ConfigurationError, convert, convert_entry
from controller.configuration.stored_secrets import is_reference
from controller.configuration.units import parse_number, parse_size, shown
from controller.lifecycle.model import Constraint, Operator
from shim.schemas import Ulimit, VolumeKind, VolumeMount

T = TypeVar("T")
_SCHEME = re.compile(r"(?P<url>(?:https?|ssh|git|file)://[^/:]*(?::\d+)?/[^:]*)(?::(?P<path>.+))?")
_SCP_LIKE = re.compile(r"(?P<url>[\w.-]+@[\w.-]+:[^:]+)(?::(?P<path>.+))?")
_WITH_LOGIN = re.compile(r"https?://[^/]*@")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", re.ASCII)
_REF = re.compile(r"[A-Za-z0-9_][\w./+@-]*", re.ASCII)
_BLOB = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_MOST_OUTPUT_PATH = 1024
Hook = Callable[[type, Any], Any]


def is_url(text: str) -> bool:
    return bool(_SCHEME.fullmatch(text) or _SCP_LIKE.fullmatch(text))


def repos(value: object, hook: Hook) -> schema.Repos:
    found = [_repo(one, f"repos[{number}]", hook) for number, one in enumerate(_list(value))]
    places = [repo.path for repo in found]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise ConfigurationError(
                f"repos[{number}].path", f"{shown(place)} is also the path of another repository"
            )
    return schema.Repos(found)


def files(value: object, hook: Hook) -> schema.FileList:
    return schema.FileList(
        _file(one, f"files[{number}]", hook) for number, one in enumerate(_list(value))
    )


def secrets(value: object) -> schema.Secrets:
    if not isinstance(value, dict):
        raise ValueError("must be a mapping, or a list of names of variables that are set")
    for name, content in value.items():
        if not _SECRET_NAME.fullmatch(name):
            raise ConfigurationError(
                "secrets", f"{shown(name)} can't be a secret's name", schema.ALLOWED["secrets"]
            )
        if not isinstance(content, str):
            raise ConfigurationError(
                f"secrets.{name}", "is not a string", schema.ALLOWED["secrets"]
            )
    return schema.Secrets(value)


def _repo(value: object, field: str, hook: Hook) -> schema.RepoFields:
    repo = _fields(_repo_of_text(value), schema.RepoFields, field, hook)
    if (repo.local_path is None) == (repo.url is None):
        raise ConfigurationError(field, "needs either local_path or url", schema.ALLOWED["repos"])
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


def _check_credentials(repo: schema.RepoFields, field: str) -> None:
    """A value here would be stored with the run and shown with it, so only a name is taken."""
    for name, given, other in (
        ("token", repo.token, repo.token_env),
        ("private_key", repo.private_key, repo.key_file),
    ):
        if given is not None and not is_reference(given):
            allowed = schema.ALLOWED[f"repos.{name}"]
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
        how = ": begin its line with `- `" if isinstance(value, str) else ""
        raise ValueError(f"is not a list{how}")
    return value


def _fields(value: object, type_: type[T], field: str, hook: Hook) -> T:
    if not isinstance(value, dict):
        allowed = schema.ALLOWED[field.partition("[")[0]]
        raise ConfigurationError(field, "must be a string or a mapping", allowed)
    return convert(value, type_, hook, within=field)


def _check(right: object, field: str, name: str, given: str | None) -> None:
    if not right:
        allowed = schema.ALLOWED[f"repos.{name}"]
        raise ConfigurationError(f"{field}.{name}", f"{shown(given)} is invalid", allowed)


def _check_blobs(field: str, *blobs: str | None) -> None:
    for blob in blobs:
        if blob is not None and not _BLOB.fullmatch(blob):
            raise ConfigurationError(f"{field}.uploaded", f"{shown(blob)} is not a sha256")


_ATTRIBUTE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,99}", re.ASCII)
_FLEET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_SIZES = frozenset({"memory", "disk", "gpu.memory"})
"""Attributes of every node that count bytes."""
_WITHOUT_VALUE = frozenset({Operator.EXISTS, Operator.NOT_EXISTS})
_MOST_EXPRESSIONS = 20
_CRON_FIELDS = 5
_ANY_TIME = datetime(2024, 1, 1, tzinfo=UTC)


def constraint(value: object, make: Callable[[type, Any], Any]) -> schema.WrittenConstraint:
    if isinstance(value, str):
        return schema.WrittenConstraint(_of_text(value))
    if not isinstance(value, dict):
        raise ValueError(f"{shown(value)} must be a string or a mapping")
    fields = convert_entry(value, schema.ConstraintFields, make, "constraints")
    if fields.value is not None and fields.values is not None:
        raise ValueError("has both value and values: give one of them")
    given = (fields.value,) if fields.value is not None else fields.values or ()
    texts = tuple(str(one) for one in given)
    return schema.WrittenConstraint(
        _checked(fields.attribute, fields.operator, texts, fields.required)
    )


def fleets(value: object) -> schema.Names:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise ValueError(f"{shown(value)} names no fleet")
    for name in names:
        if not isinstance(name, str) or not _FLEET.fullmatch(name):
            raise ValueError(f"{shown(name)} is not the name of a fleet")
    return schema.Names(dict.fromkeys(names))


def schedule(value: object) -> schema.Schedule:
    """Return the schedule of a string, a list of strings, or dstack's mapping with `cron`."""
    given = value.get("cron") if isinstance(value, dict) and value.keys() == {"cron"} else value
    expressions = [given] if isinstance(given, str) else given
    if not isinstance(expressions, list | tuple):
        raise ValueError(f"{shown(value)} is not a schedule")
    if not expressions:
        raise ValueError("is empty")
    if len(expressions) > _MOST_EXPRESSIONS:
        raise ValueError(f"has more than {_MOST_EXPRESSIONS} expressions")
    return schema.Schedule(dict.fromkeys(_expression(one) for one in expressions))


def _of_text(text: str) -> Constraint:
    """Return the constraint of `ATTRIBUTE OPERATOR [VALUE]`; commas separate the values of IN."""
    words = text.split(None, 2)
    operator = words[1].upper() if len(words) > 1 else ""
    if operator not in set(Operator):
        raise ValueError(f"{shown(text)} is not ATTRIBUTE OPERATOR VALUE{_by_name(text)}")
    rest = words[2].strip() if len(words) > 2 else ""
    parts = rest.split(",") if operator == Operator.IN else [rest]
    values = tuple(part.strip() for part in parts if part.strip())
    return _checked(words[0], Operator(operator), values, required=True)


_SIGNS = {"=": "EQ", "==": "EQ", "!=": "NE", ">=": "GE", "<=": "LE", ">": "GT", "<": "LT"}
_WITH_SIGN = re.compile(r"\s*([\w.-]+)\s*([=!<>]=?)\s*([\w.-]+)\s*", re.ASCII)


def _by_name(text: str) -> str:
    """Return how to write `rack=r1`."""
    match = _WITH_SIGN.fullmatch(text)
    operator = None if match is None else _SIGNS.get(match[2])
    return f": write {match[1]} {operator} {match[3]}" if match and operator else ""


def _checked(
    attribute: str, operator: Operator, values: tuple[str, ...], required: bool
) -> Constraint:
    if not _ATTRIBUTE.fullmatch(attribute):
        raise ValueError(f"{shown(attribute)} is not the name of an attribute")
    if operator in _WITHOUT_VALUE and values:
        raise ValueError(f"{operator} takes no value")
    if operator is Operator.IN and not values:
        raise ValueError("IN needs at least one value")
    if operator not in _WITHOUT_VALUE | {Operator.IN} and len(values) != 1:
        raise ValueError(f"{operator} needs one value; IN takes several")
    if attribute in _SIZES:
        values = tuple(_bytes(value) for value in values)
    return Constraint(attribute=attribute, operator=operator, values=values, required=required)


def _bytes(value: str) -> str:
    """Return the size in bytes, as a string; a plain number counts bytes already. Raises
    ValueError."""
    return value if parse_number(value) is not None else str(parse_size(value))


def _expression(text: object) -> str:
    from cronsim import CronSim, CronSimError  # few runs are scheduled

    if not isinstance(text, str):
        raise ValueError(f"{shown(text)} is not a cron expression; quote it")
    fields = text.split()
    if len(fields) != _CRON_FIELDS:
        raise ValueError(f"{shown(text)} is not a cron expression of {_CRON_FIELDS} fields")
    expression = " ".join(fields)
    try:
        next(CronSim(expression, _ANY_TIME))
    except CronSimError as error:
        raise ValueError(f"{shown(text)} is not a cron expression: {str(error).lower()}") from None
    except StopIteration:
        raise ValueError(f"{shown(text)} never fires") from None
    return expression


_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII)
_CAPABILITY = re.compile(r"(?:CAP_)?([A-Z][A-Z_]{1,30})", re.ASCII)
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)
_UNLIMITED = "unlimited"


def volume(value: object, make: Callable[[type, Any], Any]) -> schema.Volume:
    if isinstance(value, dict):
        return schema.Volume(_of_mapping(value, make))
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a volume")
    return volume_of_text(value)


def volume_of_text(value: str) -> schema.Volume:
    """Return the volume of `SOURCE:PATH`. Raises ValueError."""
    source, colon, rest = value.partition(":")
    target, _, access = rest.partition(":")
    if not colon or access not in ("", "ro", "rw"):
        raise ValueError(f"{shown(value)} is not SOURCE:PATH")
    kind = VolumeKind.HOST if source.startswith("/") else VolumeKind.NAMED
    return schema.Volume(_checked_volume(kind, source, target, read_only=access == "ro"))


def capability(value: object) -> schema.Capability:
    match = _CAPABILITY.fullmatch(value.upper()) if isinstance(value, str) else None
    from shim.container_rules import CAPABILITIES  # few runs ask

    if match is None or match[1] not in CAPABILITIES | {"ALL"}:
        raise ValueError(f"{shown(value)} is not a capability")
    return schema.Capability(match[1])


def ulimits(value: object) -> schema.Ulimits:
    if not isinstance(value, dict):
        raise ValueError("is not a mapping of limits to numbers")
    return schema.Ulimits(tuple(_ulimit(name, limit) for name, limit in value.items()))


def _of_mapping(value: dict[object, object], make: Callable[[type, Any], Any]) -> VolumeMount:
    fields = convert_entry(value, schema.VolumeFields, make, "volumes")
    sources = {
        VolumeKind.NAMED: fields.name,
        VolumeKind.HOST: fields.instance_path,
        VolumeKind.DEVICE: fields.device,
        VolumeKind.TMPFS: fields.tmpfs,
    }
    given = [kind for kind, source in sources.items() if source is not None]
    if len(given) != 1:
        raise ValueError("needs exactly one of name, instance_path, device, tmpfs")
    kind = given[0]
    if kind is VolumeKind.TMPFS:
        if fields.read_only or fields.optional:
            raise ValueError("is a tmpfs: read_only and optional do not apply to it")
        size = None if fields.tmpfs is None else int(fields.tmpfs)
        return VolumeMount(kind=kind, target=str(fields.path), size=size)
    return _checked_volume(
        kind,
        str(sources[kind]),
        fields.path,
        read_only=fields.read_only,
        optional=fields.optional,
    )


def _checked_volume(
    kind: VolumeKind, source: str, target: str, *, read_only: bool, optional: bool = False
) -> VolumeMount:
    if not target.startswith("/") or target == "/" or ".." in target.split("/"):
        raise ValueError(f"{shown(target)} is not an absolute path in the container")
    if kind is VolumeKind.NAMED and source.startswith((".", "~")):
        raise ValueError(
            f"{shown(source)} is no folder of the node, whose path begins with /;"
            " files sends a folder of your machine"
        )
    if kind is VolumeKind.NAMED and not _NAME.fullmatch(source):
        raise ValueError(f"{shown(source)} is not the name of a volume")
    if kind is VolumeKind.NAMED and optional:
        raise ValueError("is created when it is missing, so it cannot be optional")
    if kind is not VolumeKind.NAMED and ".." in source.split("/"):
        raise ValueError(f"{shown(source)} must not contain '..'")
    return VolumeMount(
        kind=kind, source=source, target=str(target), read_only=read_only, optional=optional
    )


def _ulimit(name: object, limit: object) -> Ulimit:
    from shim.container_rules import ULIMITS  # few runs ask

    if not isinstance(name, str) or name not in ULIMITS:
        raise ValueError(f"{shown(name)} is not one of the limits {', '.join(sorted(ULIMITS))}")
    first, colon, second = str(limit).partition(":")
    soft = _bound(name, first)
    hard = _bound(name, second) if colon else soft
    if hard != -1 and not -1 < soft <= hard:
        raise ValueError(f"{name}: the soft limit is greater than the hard limit")
    return Ulimit(name=name, soft=soft, hard=hard)


def _bound(name: str, text: str) -> int:
    if text.strip() in (_UNLIMITED, "-1"):
        return -1
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(f"{shown(text)} is not a value for {name}")
    return int(text)


_MAPPED = re.compile(r"(?:(?P<local>\d{1,5}|\*):)?(?P<port>\d{1,5})", re.ASCII)
_MOST_PORT = 65535


def output_path(value: object) -> schema.OutputPath:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a string with a path")
    if ".." in value.split("/"):
        raise ValueError(f"{shown(value)} goes up by ..; write an absolute path")
    if value.startswith("~") or "$" in value:
        raise ValueError(f"{shown(value)}: ~ and variables are not filled in; write the path")
    if len(value.encode()) > _MOST_OUTPUT_PATH:
        raise ValueError(f"is longer than {_MOST_OUTPUT_PATH} bytes")
    return schema.OutputPath(value)


def bucket_url(value: object) -> schema.BucketUrl:
    if not isinstance(value, str):
        raise ValueError("must be a string such as s3://BUCKET/PREFIX")
    parse_bucket(value)
    return schema.BucketUrl(value)


def bucket_endpoint(value: object) -> schema.BucketEndpoint:
    if not isinstance(value, str):
        raise ValueError("must be a string such as https://HOST")
    return schema.BucketEndpoint(parse_endpoint(value))


def port_mapping(value: object) -> schema.PortMapping:
    """Return the mapping of `PORT` or `LOCAL:PORT`."""
    found = _MAPPED.fullmatch(str(value)) if type(value) in (int, str) else None
    if found is None:
        raise ValueError(f"{shown(value)} is not a port")
    port = int(found["port"])
    local = 0 if found["local"] == "*" else int(found["local"] or port)
    if not (1 <= port <= _MOST_PORT and local <= _MOST_PORT):
        raise ValueError(f"{shown(value)} is out of range: ports are 1 to {_MOST_PORT}")
    return schema.PortMapping(port, local)
