"""The words in which Compute Engine refuses, as the refusals of the seam.

It refuses in two ways: at once, by the status and `reason` of an answer, and later, by the code of
an operation that has failed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from controller.clouds.base import (
    CloudAway,
    CloudError,
    NoCapacity,
    QuotaReached,
    Refused,
    Throttled,
    Unauthorized,
)
from controller.lifecycle.machines.model import Reach
from fairlead.wire.decoders import decoder_of

_THROTTLED_SECONDS = 10.0
_MAX_SHOWN = 500
_UNAUTHENTICATED, _FORBIDDEN, _NOT_FOUND, _CONFLICT, _TOO_MANY = 401, 403, 404, 409, 429
_FIRST_SERVER_ERROR = 500
_THROTTLED = frozenset(
    {
        "concurrentLimitExceeded",
        "rateLimitExceeded",
        "userRateLimitExceeded",
        "RATE_LIMIT_EXCEEDED",
        "RESOURCE_OPERATION_RATE_EXCEEDED",
    }
)
_QUOTA = frozenset({"quotaExceeded", "limitExceeded", "QUOTA_EXCEEDED", "LIMIT_EXCEEDED"})
_NO_CAPACITY = frozenset(
    {
        "resourcePoolExhausted",
        "INSUFFICIENT_CAPACITY",
        "RESOURCE_POOL_EXHAUSTED",
        "STOCKOUT",
        "UNAVAILABLE_CAPACITY",
        "VM_MIN_COUNT_NOT_REACHED",
    }
)
_EXHAUSTED = "RESOURCE_POOL_EXHAUSTED"
"""It has prefixes and suffixes: ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS."""
_TAKEN = frozenset({"alreadyExists", "RESOURCE_ALREADY_EXISTS"})
_OPEN = frozenset({"resourceNotReady", "resourceInUseByAnotherResource", "RESOURCE_NOT_READY"})
_UNAUTHORIZED = frozenset({"PERMISSIONS_ERROR", "PERMISSION_DENIED", "FORBIDDEN"})
_OF_SETUP: tuple[tuple[tuple[str, ...], str, Reach], ...] = (
    (("/images/", "sourceImage"), "image", Reach.PROVIDER),
    (("/subnetworks/", ".subnetwork"), "regions.{region}.subnetwork", Reach.REGION),
    (("serviceAccount",), "service_account", Reach.PROVIDER),
)
"""What a message has that is about what the controller's file names, and the field. Google has no
codes for these: it names the resource, or the field of its own."""
_FAULTS = frozenset({"INTERNAL_ERROR", "BACKEND_ERROR", "SERVICE_UNAVAILABLE", "TIMEOUT"})


class NameTaken(CloudAway):
    """An instance of this name exists in the zone."""


class NotThere(CloudAway):
    """There is no such resource, or none yet."""


class Reason(msgspec.Struct, frozen=True):
    """Why, by the word of the API."""

    reason: str = ""


class _Content(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""
    status: str = ""
    errors: tuple[Reason, ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    error: _Content


class Fault(msgspec.Struct, frozen=True):
    """One error of an operation."""

    code: str = ""
    message: str = ""


def named(error: CloudError, provider: str, region: str) -> CloudError:
    """Return a refusal with the field of the controller's file that it is about, if there is one,
    and with its reach."""
    text = str(error)
    if not isinstance(error, Refused):
        return error
    for words, field, reach in _OF_SETUP:
        if any(word in text for word in words):
            return Refused(f"providers.{provider}.{field.format(region=region)}: {text}", reach)
    return error


def refusal(what: str, status: int, body: bytes) -> CloudError:
    """Return the error of an answer; `what`: the call, for operators.

    Only what was definitely not done is a refusal; a fault of the other side leaves it open.
    """
    try:
        content = decoder_of(_Answer).decode(body).error
    # A proxy on the way answers with a page of its own.
    except msgspec.MsgspecError:
        content = _Content()
    reason = next((one.reason for one in content.errors if one.reason), content.status)
    text = f"{what}: {content.message or 'no reason'} ({reason or status})"[:_MAX_SHOWN]
    if (known := _by_code(reason)) is not None:
        return known(text)
    by_status: dict[int, Callable[[str], CloudError]] = {
        _UNAUTHENTICATED: Unauthorized,
        _FORBIDDEN: Unauthorized,
        _NOT_FOUND: NotThere,
        _CONFLICT: CloudAway,
        _TOO_MANY: _throttled,
    }
    if (kind := by_status.get(status)) is not None:
        return kind(text)
    # Without a reason it is the answer of something else on the way.
    return CloudAway(text) if status >= _FIRST_SERVER_ERROR or not reason else Refused(text)


def failure(what: str, faults: tuple[Fault, ...]) -> tuple[CloudError, bool]:
    """Return the error of an operation that has failed, and whether a machine of its name may be
    there. The error is definite: for an hour, asking with the same request id would tell the same
    operation again."""
    first = faults[0] if faults else Fault("INTERNAL_ERROR", "no reason")
    text = f"{what}: {first.message or 'no reason'} ({first.code})"[:_MAX_SHOWN]
    kind = _by_code(first.code)
    if kind is NoCapacity or kind is QuotaReached:
        return kind(text), False
    if kind is CloudAway or first.code in _FAULTS:
        return NoCapacity(text), True  # It passes.
    if kind is _throttled:
        return NoCapacity(text), False
    return Refused(text), kind is NameTaken


def _by_code(code: str) -> Callable[[str], CloudError] | None:
    if code in _NO_CAPACITY or _EXHAUSTED in code:
        return NoCapacity
    for codes, kind in (
        (_QUOTA, QuotaReached),
        (_THROTTLED, _throttled),
        (_TAKEN, NameTaken),
        (_OPEN, CloudAway),
        (_UNAUTHORIZED, Unauthorized),
    ):
        if code in codes:
            return kind
    return None


def _throttled(text: str) -> CloudError:
    return Throttled(text, _THROTTLED_SECONDS)
