"""The words in which EC2 refuses, as the refusals of the seam."""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, ClientError

from controller.clouds.base import (
    CloudAway,
    CloudError,
    NoCapacity,
    QuotaReached,
    Refused,
    Throttled,
    Unauthorized,
)

_NO_CAPACITY = frozenset(
    {
        "InsufficientCapacity",
        "InsufficientCapacityOnHost",
        "InsufficientHostCapacity",
        "InsufficientInstanceCapacity",
        "InsufficientReservedInstanceCapacity",
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
        "UnfulfillableCapacity",
    }
)
_QUOTA = frozenset(
    {
        "AddressLimitExceeded",
        "InstanceLimitExceeded",
        "InsufficientFreeAddressesInSubnet",
        "MaxSpotInstanceCountExceeded",
        "NetworkInterfaceLimitExceeded",
        "ResourceCountExceeded",
        "VcpuLimitExceeded",
        "VolumeLimitExceeded",
    }
)
_THROTTLED = frozenset(
    {
        "EC2ThrottledException",
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_UNAUTHORIZED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "Blocked",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "MissingAuthenticationToken",
        "OptInRequired",
        "PendingVerification",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnauthorizedOperation",
        "UnrecognizedClientException",
    }
)
_WITHOUT_KEYS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")
TOKEN_MISMATCH = "IdempotentParameterMismatch"
TOKEN_OF_ENDED = "IdempotentInstanceTerminated"
NOT_FOUND = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
_FIRST_SERVER_ERROR = 500
_MAX_SHOWN = 500


class TokenMismatch(CloudAway):
    """The token was used before with other parameters: that call may have made a machine."""


class WouldWork(CloudAway):
    """A call that was only tried would have worked."""


class InstanceUnknown(CloudAway):
    """EC2 knows no machine of this id, or does not know it yet."""


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def refusal(error: BotoCoreError | ClientError, what: str) -> CloudError:
    """Return the error of the seam; `what`: the call and its region, for operators.

    Only what EC2 definitely has not done is a refusal; a fault of its own, or of the way to it,
    leaves the outcome open.
    """
    if not isinstance(error, ClientError):
        if type(error).__name__ in _WITHOUT_KEYS:
            return Unauthorized(f"{what}: {error}")
        return CloudAway(f"{what}: {error}"[:_MAX_SHOWN])
    code = code_of(error)
    message = str(error.response.get("Error", {}).get("Message", ""))
    text = f"{what}: {message or 'no reason'} ({code})"[:_MAX_SHOWN]
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    for codes, kind in ((_NO_CAPACITY, NoCapacity), (_QUOTA, QuotaReached)):
        if code in codes:
            return kind(text)
    if code in _THROTTLED:
        return Throttled(text)
    if code in _UNAUTHORIZED:
        return Unauthorized(text)
    if code in NOT_FOUND:
        return InstanceUnknown(text)
    if code == "DryRunOperation":
        return WouldWork(text)
    if code == TOKEN_MISMATCH:
        return TokenMismatch(text)
    if code == TOKEN_OF_ENDED:
        return Refused(f"{what}: the machine of this order has ended already ({code})")
    if status >= _FIRST_SERVER_ERROR or not code:
        return CloudAway(text)
    return Refused(text)
