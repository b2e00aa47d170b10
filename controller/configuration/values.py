"""Makes each type of `schema` from the YAML's values.

A ValueError holds the sentence for the user; the caller adds the field's path.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from signal import Signals
from typing import Any, TypeVar

from common.sizes import size_of
from controller.configuration import dev_environments, fields, groups, schema, services
from controller.configuration.convert import ConfigurationError, convert
from controller.configuration.images import image_name
from controller.configuration.names import is_run_name
from controller.configuration.units import (
    parse_count,
    parse_cpu,
    parse_duration,
    parse_duration_or_off,
    parse_size,
    shown,
)
from controller.lifecycle.model import GpuNeed

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?", re.ASCII)
_PYTHON = re.compile(r"3\.\d{1,2}(?:\.\d{1,2})?", re.ASCII)
_TIMES = re.compile(
    r"(?P<name>[A-Za-z][\w ]*?\d) *[x*] *(?P<count>\d+)"
    r"|(?P<first>\d+) *[x*]? *(?P<last>[A-Za-z]\w*)",
    re.ASCII | re.IGNORECASE,
)
"""`H100 x 8` and `8xH100`, as people write a number of GPUs."""
_SHORT_UNIT = re.compile(r"[kmgtp]i?b?", re.ASCII | re.IGNORECASE)
_NO_GPU_NAMES = frozenset({"all", "any", "auto", "none"})
_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL"})
_SSH_CHOICES = frozenset({"auto", "embedded", "install", "off"})
_GPU_NAME = re.compile(r"[A-Za-z][A-Za-z0-9 _-]{0,63}", re.ASCII)
_VENDOR = "nvidia"
_OTHER_VENDORS = frozenset({"amd", "google", "tpu", "intel", "tenstorrent"})
_OF_OTHER_VENDORS = {
    "AMD": re.compile(r"mi ?\d{2,3}[a-z]{0,2}", re.ASCII),
    "Google": re.compile(r"(?:tpu-?)?v\d[a-z]*-\d+|tpu", re.ASCII),
    "Intel": re.compile(r"gaudi ?\d?", re.ASCII),
    "Tenstorrent": re.compile(r"tt-[a-z0-9-]+|[np]150[a-z]?|[np]300[a-z]?|wormhole", re.ASCII),
}
"""Names of accelerators that no node has. A vendor that nodes can have leaves this table."""
_ONLY = "nodes have GPUs of NVIDIA"
_CAPABILITY = re.compile(r"(\d{1,2}\.\d{1,2})(?:\.\.)?", re.ASCII)


def make(type_: type, value: Any) -> Any:
    """Make a value of one of the schema's types; this is msgspec's hook."""
    return _MAKERS[type_](value)


def _run_name(value: object) -> schema.RunName:
    if not isinstance(value, str) or not is_run_name(value):
        raise ValueError(f"{shown(value)} is not a run name{_as_name(value)}")
    return schema.RunName(value)


def _as_name(value: object) -> str:
    """Return a run name that is like the text; empty: there is none."""
    if isinstance(value, bool):
        return ": quote it"
    text = re.sub(r"[^a-z0-9]+", "-", value.strip().lower()) if isinstance(value, str) else ""
    name = text.strip("-").lstrip("-0123456789")
    return f": write {name}" if is_run_name(name) else ""


def _argv(value: object) -> schema.Argv:
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"can't be split into words: {str(error).lower()}") from None
    elif isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        words = list(value)
    else:
        raise ValueError("is not a program with arguments; quote arguments that are not strings")
    if not words or not words[0]:
        raise ValueError("names no program")
    return schema.Argv(words)


def _env(value: object) -> schema.Env:
    if isinstance(value, dict):
        return schema.Env(_variable(name, content) for name, content in value.items())
    if isinstance(value, list | tuple):
        return _env_of_list(value)
    how = ": begin each line with `- `" if isinstance(value, str) and "=" in value else ""
    raise ValueError(f"must be a mapping or a list{how}")


def _env_of_list(entries: list[object] | tuple[object, ...]) -> schema.Env:
    env = schema.Env()
    for number, entry in enumerate(entries):
        name, content = _assignment(entry, f"env[{number}]")
        if name in env:
            raise ConfigurationError(f"env[{number}]", f"gives {name[:60]} a second time")
        env[name] = content
    return env


def _assignment(entry: object, field: str) -> tuple[str, str]:
    allowed = schema.ALLOWED["env"]
    if isinstance(entry, dict) and len(entry) == 1:
        name = next(iter(entry))
        raise ConfigurationError(
            field,
            f"is a mapping: write {shown(name)[1:-1]}=VALUE, or a mapping without `- `",
            allowed,
        )
    if not isinstance(entry, str):
        raise ConfigurationError(field, "is not a string", allowed)
    name, equals, content = entry.partition("=")
    if not equals:
        raise ConfigurationError(
            field,
            "has no value: set it here, or in the environment of `fairlead apply`",
            allowed,
        )
    if not _ENV_NAME.fullmatch(name):
        raise ConfigurationError(field, "does not begin with the name of a variable", allowed)
    return _variable(name, content)


def _variable(name: object, content: object) -> tuple[str, str]:
    allowed = schema.ALLOWED["env"]
    if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
        why = f"{shown(name)} can't be a variable's name{_as_variable(name)}"
        raise ConfigurationError("env", why, allowed)
    if isinstance(content, bool):
        raise ConfigurationError(
            f"env.{name}", "is true or false in YAML; quote it to write a string", allowed
        )
    if content is None:
        raise ConfigurationError(
            f"env.{name}", 'has no value: write "" for an empty string', allowed
        )
    if not isinstance(content, str | int | float):
        raise ConfigurationError(f"env.{name}", "must be a string or a number", allowed)
    try:
        text = str(content)
    except ValueError:
        raise ConfigurationError(
            f"env.{name}", "is a number with too many digits; quote it"
        ) from None
    return name, text


def _as_variable(name: object) -> str:
    short = name.strip().removeprefix("export ").strip() if isinstance(name, str) else ""
    return f": write {short}=VALUE" if short != name and _ENV_NAME.fullmatch(short) else ""


def _folder(value: object) -> schema.FolderName:
    if not isinstance(value, str) or not value.startswith("/"):
        raise ValueError(f"{shown(value)} is not an absolute path")
    return schema.FolderName(value)


def _user(value: object) -> schema.UserName:
    text = str(value) if type(value) is int and 0 <= value < 1 << 32 else value
    if not isinstance(text, str) or not _USER.fullmatch(text):
        raise ValueError(f"{shown(value)} is not a user")
    return schema.UserName(text)


def _python(value: object) -> schema.PythonVersion:
    """Return the version; YAML reads 3.10 as the number 3.1."""
    text = "3.10" if value == 3.1 else str(value)
    if isinstance(value, bool) or not _PYTHON.fullmatch(text):
        raise ValueError(f"{shown(value)} is not a version of Python")
    return schema.PythonVersion(text)


def _signal(value: object) -> schema.SignalName:
    if not isinstance(value, str) or value not in _SIGNALS:
        raise ValueError(f"{shown(value)} is not a signal that can be sent{_full_signal(value)}")
    return schema.SignalName(value)


def _full_signal(value: object) -> str:
    """Return the name of a signal that was written as `TERM` or `15`."""
    name = f"SIG{value}".upper()
    if type(value) is int and value in set(Signals):
        name = Signals(value).name
    return f": write {name}" if name in _SIGNALS else ""


def _ssh(value: object) -> schema.SshChoice:
    """Return the choice. YAML reads an unquoted `off` as false."""
    choice = "off" if value is False else value
    if not isinstance(choice, str) or choice not in _SSH_CHOICES:
        raise ValueError(f"{shown(value)} is not a way to serve SSH")
    return schema.SshChoice(choice)


def _gpu(value: object) -> schema.Gpu:
    if isinstance(value, dict):
        return schema.Gpu(_gpu_of_mapping(value))
    if isinstance(value, str) and not value.strip().replace(".", "").isdigit():
        return schema.Gpu(_gpu_of_text(value))
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        raise ValueError(f"is a list: write {','.join(value)[:60]} for any of them")
    if isinstance(value, bool | list | tuple):
        raise ValueError(f"{shown(value)} is not a GPU request")
    return schema.Gpu(GpuNeed(count=parse_count(value)))


def _gpu_of_text(text: str) -> GpuNeed:
    """Return the need of `[VENDOR:]NAME[,NAME…][:MEMORY][:COUNT]`, each part optional, as in
    dstack; of a range of memory or counts a job takes the lower end."""
    _check_gpu_words(text)
    count, memory, names = 1, 0, tuple[str, ...]()
    vendor, colon, rest = text.partition(":")
    if vendor.strip().lower() == _VENDOR:
        text = rest if colon else str(count)
    elif colon and vendor.strip().lower() in _OTHER_VENDORS:
        raise ValueError(f"{shown(text)}: GPUs of {vendor.strip()} are not supported; {_ONLY}")
    for number, part in enumerate(text.split(":")):
        word = part.strip()
        if word.replace(".", "").isdigit():
            count = parse_count(word)
        elif word[:1].isdigit():
            memory = _least_size(word)
        elif number == 0:
            names = _gpu_names(word.split(","))
        else:
            raise ValueError(f"{shown(text)} is not a GPU request")
    return GpuNeed(count=count, names=names, min_memory=memory)


def _check_gpu_words(text: str) -> None:
    """Refuse what reads like a request and is none of our form."""
    match = None if size_of(text) is not None else _TIMES.fullmatch(text.strip())
    if match is not None and not _SHORT_UNIT.fullmatch(match["last"] or ""):
        name, count = (match["name"] or match["last"]).strip(), match["count"] or match["first"]
        raise ValueError(f"{shown(text)} is not a GPU request: write {name}:{count}")
    if text.strip().lower() in _NO_GPU_NAMES:
        raise ValueError(f"{shown(text)} is not a GPU's name: write how many, such as 1")
    parts = [part.strip() for part in text.split(":")]
    if sum(part.isdigit() for part in parts) > 1:
        raise ValueError(f"{shown(text)} has two counts; memory has a unit, such as 80GB")


def _gpu_names(names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    stripped = tuple(name.strip() for name in names)
    for name in stripped:
        if not _GPU_NAME.fullmatch(name):
            raise ValueError(f"{shown(name)} is not a GPU's name")
        for vendor, pattern in _OF_OTHER_VENDORS.items():
            if pattern.fullmatch(name.lower()):
                raise ValueError(
                    f"{name} is an accelerator of {vendor}, which is not supported; {_ONLY}"
                )
    return stripped


def _gpu_of_mapping(value: dict[object, object]) -> GpuNeed:
    fields = convert(value, schema.GpuFields, make, within="resources.gpu")
    names = (fields.name,) if isinstance(fields.name, str) else fields.name
    memory = fields.memory
    return GpuNeed(
        count=_named("count", parse_count, fields.count),
        names=_named("name", _gpu_names, names),
        min_memory=0 if memory is None else _named("memory", _least_size, memory),
        min_compute_capability=_named("compute_capability", _capability, fields.compute_capability),
    )


def _named(name: str, make_value: Callable[[Any], Any], value: object) -> Any:
    field = f"resources.gpu.{name}"
    try:
        return make_value(value)
    except ValueError as error:
        raise ConfigurationError(field, str(error), schema.ALLOWED[field]) from None


def _least_size(value: str) -> int:
    return parse_size(_without_open_end(value))


def _capability(value: object) -> str | None:
    if value is None:
        return None
    match = _CAPABILITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{shown(value)} is not a compute capability")
    return match[1]


_MAKERS: dict[type, Callable[[Any], object]] = {
    schema.Size: lambda value: _amount(schema.Size(parse_size(_without_open_end(value))), value),
    schema.Duration: lambda value: schema.Duration(parse_duration(value)),
    schema.DurationOrOff: lambda value: schema.DurationOrOff(parse_duration_or_off(value)),
    schema.Cpu: lambda value: _amount(schema.Cpu(parse_cpu(value)), value),
    schema.RunName: _run_name,
    schema.Argv: _argv,
    schema.Env: _env,
    schema.FolderName: _folder,
    schema.ImageName: lambda value: schema.ImageName(image_name(value)),
    schema.BucketUrl: fields.bucket_url,
    schema.BucketEndpoint: fields.bucket_endpoint,
    schema.UserName: _user,
    schema.PythonVersion: _python,
    schema.SignalName: _signal,
    schema.SshChoice: _ssh,
    schema.Home: dev_environments.home,
    schema.IdeVersion: dev_environments.ide_version,
    schema.Gpu: _gpu,
    schema.Repos: lambda value: fields.repos(value, make),
    schema.FileList: lambda value: fields.files(value, make),
    schema.Secrets: fields.secrets,
    schema.Volume: lambda value: fields.volume(value, make),
    schema.Capability: fields.capability,
    schema.Ulimits: fields.ulimits,
    schema.PortMapping: fields.port_mapping,
    schema.OutputPath: fields.output_path,
    schema.WrittenConstraint: lambda value: fields.constraint(value, make),
    schema.Names: fields.fleets,
    schema.Schedule: fields.schedule,
    schema.Groups: lambda value: groups.groups(value, make),
    schema.GroupName: lambda value: schema.GroupName(str(value)),
    schema.PortPair: services.port,
    schema.ReplicaRange: services.replica_range,
    schema.Replicas: lambda value: services.replicas(value, make),
    schema.Headers: lambda value: services.headers(value, make),
    schema.HeaderName: services.header_name,
    schema.UrlPath: services.url_path,
    schema.ProbeMethod: services.method,
}


_Amount = TypeVar("_Amount", schema.Size, schema.Cpu)


def _amount(made: _Amount, written: object) -> _Amount:
    made.is_least = isinstance(written, str) and written.rstrip().endswith("..")
    return made


def _without_open_end(value: object) -> object:
    """Return the lower end of `8GB..` or `8GB..16GB`, which users of dstack write for "at least
    8GB"."""
    if not isinstance(value, str) or ".." not in value:
        return value
    lower, _, upper = value.partition("..")
    if upper.strip() and parse_size(upper) < parse_size(lower):
        raise ValueError(f"{shown(value)} ends before it begins")
    return lower
