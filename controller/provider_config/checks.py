"""What several types of providers allow, and how it is checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.values.units import SIZE_ALLOWED, Size

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
GIB = 1 << 30
URL = "a URL such as https://ec2.example.com"
NAMES = "1 to 40 of a-z, 0-9 and '-'"
PRICES = "a mapping of types of machines to prices of an hour, such as {g6.xlarge: 0.8}"
DISK = f"{SIZE_ALLOWED}, from 8GB to 16TB"
ACCOUNTS = "a name of 1 to 60 characters without spaces, by which records of machines know it"
_ACCOUNT = re.compile(r"[!-~]{1,60}")
ADDRESSES = "public or private: the address at which the controller reaches the machines"


class Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written about a provider."""


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """A provider. `rate`: what 1 of its currency is in that of the installation."""

    rate: float = 1.0


def account_of(field: str, written: str | None) -> str | None:
    """Raises ConfigurationError."""
    if written is not None and not _ACCOUNT.fullmatch(written):
        raise ConfigurationError(field, f"{written!r} is no such name", ACCOUNTS)
    return written


def check_endpoint(within: str, url: str | None) -> None:
    """Raises ConfigurationError."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or not re.fullmatch(r"[!-~]+", url):
        raise ConfigurationError(f"{within}.endpoint", "is no URL", URL)
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigurationError(f"{within}.endpoint", "is more than a host and a path", URL)


def disk_of(within: str, written: Size | None) -> int:
    """Raises ConfigurationError."""
    disk = 100 * GIB if written is None else int(written)
    if not 8 * 10**9 <= disk <= 16 * (1 << 40):
        raise ConfigurationError(f"{within}.disk", f"is {disk} bytes", DISK)
    return disk


def check_prices(within: str, prices: Mapping[str, float]) -> None:
    """Raises ConfigurationError. A machine without a price would be outside of every budget."""
    for instance_type, price in prices.items():
        if not 0 < price < 10_000:
            field = f"{within}.prices.{instance_type}"
            raise ConfigurationError(field, f"is {price:g}", "a price of an hour, more than 0")
