"""What a service says of itself: its port, replicas, scaling, probes, limits, headers, model."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec

from fairlead.configuration.convert import ConfigurationError, convert
from fairlead.configuration.field import Field, mapping_of
from fairlead.configuration.values.commands import STRING, Text
from fairlead.configuration.values.units import (
    DURATION_ALLOWED,
    AtLeastOne,
    Duration,
    Positive,
    Times,
    as_range,
    shown,
)
from fairlead.model.service import RateLimitKey, ScalingMetric

MAX_REPLICAS = 1000
"""The most replicas of one group of a service."""
RANGE_ALLOWED = "a whole number such as 2, or a range such as 1..4"
_PORT = re.compile(r"(?:(\d{1,5}):)?(\d{1,5})", re.ASCII)
_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:(\.\.)\s*(\d{1,9})?\s*)?", re.ASCII)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", re.ASCII)
_URL_PATH = re.compile(r"/[!-~]{0,2000}", re.ASCII)
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


class PortPair:
    """`port`: of the replicas, and under which a gateway offers it (`80:8000`)."""

    __slots__ = ("port", "public")
    ALLOWED = "a port from 1 to 65535 such as 8000, or PUBLIC:PORT such as 80:8000"
    SCHEMA: ClassVar[dict[str, Any]] = {"type": ["integer", "string"]}

    def __init__(self, port: int, public: int | None) -> None:
        self.port = port
        self.public = public

    @classmethod
    def read(cls, value: object) -> Self:
        match = _PORT.fullmatch(str(value)) if type(value) in (int, str) else None
        numbers = [int(number) for number in match.groups() if number] if match else []
        if not numbers or not all(1 <= number <= 65535 for number in numbers):
            raise ValueError(f"{shown(value)} is not a port")
        return cls(numbers[-1], numbers[0] if len(numbers) == 2 else None)


class ReplicaRange:
    """From `least` to `most` replicas."""

    __slots__ = ("least", "most")
    ALLOWED = f"{RANGE_ALLOWED}; at most {MAX_REPLICAS}"
    SCHEMA: ClassVar[dict[str, Any]] = {"type": ["integer", "string"]}

    def __init__(self, least: int, most: int) -> None:
        self.least = least
        self.most = most

    @classmethod
    def read(cls, value: object) -> Self:
        match = _RANGE.fullmatch(str(value)) if type(value) in (int, str) else None
        if match is None:
            raise ValueError(f"{shown(value)} is not a number of replicas{as_range(value)}")
        least = int(match[1])
        if match[2] and not match[3]:
            raise ValueError(f"{shown(value)} has no upper end; write the most that there may be")
        most = int(match[3]) if match[2] else least
        if most < least:
            raise ValueError(f"{shown(value)} ends before it begins")
        if not 1 <= most <= MAX_REPLICAS:
            raise ValueError(f"{shown(value)} is not between 1 and {MAX_REPLICAS}")
        return cls(least, most)


class ScalingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    metric: ScalingMetric
    target: Annotated[
        Positive,
        Field(
            "a number of more than 0: requests per second and replica (rps), requests in"
            " flight per replica (concurrency), or seconds (latency-p95)"
        ),
    ]
    window: Literal["30s", "60s", "1m", "5m"] = "60s"
    scale_up_delay: Duration | None = None
    scale_down_delay: Duration | None = None


class HeaderName(str):
    __slots__ = ()
    ALLOWED = "the name of a header, such as X-API-Key"
    SCHEMA = STRING

    @classmethod
    def read(cls, value: object) -> Self:
        if not isinstance(value, str) or not _HEADER.fullmatch(value):
            raise ValueError(f"{shown(value)} is not the name of a header")
        return cls(value)


class HeaderFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: HeaderName
    value: Annotated[str, Field("a string")]

    def __repr__(self) -> str:
        return f"HeaderFields({self.name})"


class Headers(tuple[tuple[str, str], ...]):
    """Names and values. The values may be secret: only the names are shown."""

    __slots__ = ()
    PAIR = HeaderFields
    SCHEMA: ClassVar[dict[str, Any]] = {
        "anyOf": [
            {"type": "object", "additionalProperties": STRING},
            {"type": "array", "items": mapping_of(HeaderFields)},
        ]
    }

    @classmethod
    def read(cls, value: object) -> Self:
        if isinstance(value, dict):
            pairs = list(value.items())
        elif isinstance(value, list | tuple):
            made = [_header(number, one) for number, one in enumerate(value)]
            pairs = [(one.name, one.value) for one in made]
        else:
            raise ValueError("must be a mapping or a list")
        for name, content in pairs:
            HeaderName.read(name)
            if not isinstance(content, str) or not content.isprintable():
                raise ValueError(f"the value of {name} is not a string that a header can hold")
        return cls((str(name), content) for name, content in pairs)

    def __repr__(self) -> str:
        return f"Headers({[name for name, _ in self]})"


def _header(number: int, value: object) -> HeaderFields:
    try:
        return convert(value, HeaderFields)
    except ConfigurationError as error:
        parts = (f"item {number}:", error.field, error.message)
        raise ValueError(" ".join(part for part in parts if part)) from None


class UrlPath(str):
    """A path of a URL, with its query."""

    __slots__ = ()
    SCHEMA: ClassVar[dict[str, Any]] = {"type": "string", "pattern": "^/"}

    @classmethod
    def read(cls, value: object) -> Self:
        if not isinstance(value, str) or not _URL_PATH.fullmatch(value):
            raise ValueError(f"{shown(value)} is not a path that begins with /")
        return cls(value)


class ProbeMethod(str):
    """A method of HTTP, in capitals."""

    __slots__ = ()
    ALLOWED = "get, post, put, patch, delete, head, options"
    SCHEMA = STRING

    @classmethod
    def read(cls, value: object) -> Self:
        if not isinstance(value, str) or value.upper() not in _METHODS:
            raise ValueError(f"{shown(value)} is not a method")
        return cls(value.upper())


class ProbeFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the `probes`."""

    type: Literal["http", "tcp"]
    url: Annotated[UrlPath | None, Field("a path that begins with /, such as /health")] = None
    method: ProbeMethod | None = None
    headers: Annotated[
        Headers | None,
        Field("a list of mappings with name and value, or a mapping of names to values"),
    ] = None
    body: Annotated[str | None, Field("a string")] = None
    timeout: Annotated[Duration | None, Field(f"{DURATION_ALLOWED}; more than 0")] = None
    interval: Annotated[Duration | None, Field(f"{DURATION_ALLOWED}; at least 1s")] = None
    ready_after: AtLeastOne = 1
    until_ready: bool = False


class RateLimitKeyFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: RateLimitKey
    header: HeaderName | None = None


class RateLimitFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the `rate_limits`."""

    prefix: Annotated[UrlPath | None, Field("a path that begins with /, such as /api/")] = None
    key: Annotated[
        Literal["ip", "header"] | RateLimitKeyFields,
        Field("ip, header (then header names it), or a mapping with type and header"),
    ] = "ip"
    header: HeaderName | None = None
    rps: Positive
    burst: Annotated[Times, Field("a whole number of at least 0")] = 0


class ModelFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The long form of `model`."""

    name: Text
    type: Literal["chat"] = "chat"
    format: Literal["openai"] = "openai"
    prefix: Annotated[UrlPath | None, Field("a path that begins with /, such as /v1")] = None
