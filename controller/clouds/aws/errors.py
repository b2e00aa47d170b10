"""The words in which EC2 refuses, as the refusals of the seam."""

from __future__ import annotations

import re

from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError

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
_OF_SETUP: tuple[tuple[str, str, Reach], ...] = (
    ("InvalidAMIID", "regions.{region}.image", Reach.REGION),
    ("InvalidGroup", "regions.{region}.security_groups", Reach.REGION),
    ("InvalidSecurityGroup", "regions.{region}.security_groups", Reach.REGION),
    ("InvalidKeyPair", "key_name", Reach.REGION),
    ("InvalidSubnet", "regions.{region}.subnets.{zone}", Reach.ZONE),
)
"""How a code begins that is about what the controller's file names, and the field."""
_PROFILE = "iaminstanceprofile"
_OTHER_NETWORK = "belong to different networks"
TOKEN_MISMATCH = "IdempotentParameterMismatch"
TOKEN_OF_ENDED = "IdempotentInstanceTerminated"
NOT_FOUND = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
_FIRST_SERVER_ERROR = 500
_MAX_SHOWN = 500
_ENCODED = re.compile(r"\s*Encoded authorization failure message: \S+")
"""Up to thousands of characters that only `aws sts decode-authorization-message` reads."""
_NOT_ENABLED = frozenset(
    {"AuthFailure", "InvalidClientTokenId", "OptInRequired", "UnrecognizedClientException"}
)
"""How a region refuses that the account has not enabled: as it refuses wrong credentials."""


class SetupRefused(CloudError):
    """EC2 refuses what the controller's file names, which all offers within reach share. `field`:
    of the provider, with `{region}` and `{zone}` where theirs belong."""

    def __init__(self, message: str, field: str, reach: Reach) -> None:
        super().__init__(message)
        self.field = field
        self.reach = reach


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
        if isinstance(error, EndpointConnectionError):
            where = error.kwargs["endpoint_url"]
            return CloudAway(f"{what}: nothing answers at {where}"[:_MAX_SHOWN])
        return CloudAway(f"{what}: {error}"[:_MAX_SHOWN])
    code = code_of(error)
    message = _ENCODED.sub("", str(error.response.get("Error", {}).get("Message", "")))
    text = f"{what}: {message or 'no reason'} ({code})"[:_MAX_SHOWN]
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    for codes, kind in ((_NO_CAPACITY, NoCapacity), (_QUOTA, QuotaReached)):
        if code in codes:
            return kind(text)
    if code in _THROTTLED:
        return Throttled(text)
    if code in _NOT_ENABLED:
        return Unauthorized(f"{text}; so refuses a region that the account has not enabled, too")
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
    return _of_setup(code, message, text) or Refused(text)


def _of_setup(code: str, message: str, text: str) -> SetupRefused | None:
    for begin, field, reach in _OF_SETUP:
        if code.startswith(begin):
            return SetupRefused(text, field, reach)
    # EC2 has no codes of their own for these two.
    if _PROFILE in message.lower().replace(" ", ""):
        return SetupRefused(text, "instance_profile", Reach.REGION)
    if _OTHER_NETWORK in message:
        return SetupRefused(text, "regions.{region}.subnets.{zone}", Reach.ZONE)
    return None
