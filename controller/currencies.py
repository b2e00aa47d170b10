"""Currencies: prices are compared and added up in one, that of the installation.

A provider with another one has a `rate` in the controller's file. Its offers are converted where
they are read, so nothing else knows of a second currency.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.values.units import shown

ALLOWED = "the three letters of a currency, such as EUR"
_RATES = "what 1 of the provider's currency is in that of the controller's file, such as 1.08"
_OF_TYPE = {"aws": "USD", "gcp": "USD", "hetzner": "EUR"}
"""In which the APIs of these types tell their prices."""
_CODE = re.compile(r"[A-Z]{3}")
_MIN_RATE, _MAX_RATE = 1e-6, 1e6


class Money(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's currency, None: that of the installation; and its rate as written."""

    currency: str | None = None
    rate: float | None = None


def take_money(within: str, data: dict[str, Any]) -> Money:
    """Take the fields about money out of a provider's. Raises ConfigurationError."""
    currency = data.pop("currency", None)
    rate = data.pop("rate", None)
    if currency is not None:
        require_code(f"{within}.currency", currency)
    if rate is not None and not _is_rate(rate):
        raise ConfigurationError(f"{within}.rate", f"is {shown(rate)}", _RATES)
    kind = data.get("type")
    known = _OF_TYPE.get(kind) if isinstance(kind, str) else None
    return Money(currency=currency or known, rate=None if rate is None else float(rate))


def _is_rate(rate: object) -> bool:
    is_number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
    return is_number and _MIN_RATE <= rate <= _MAX_RATE  # type: ignore[operator]


def require_code(field: str, currency: object) -> None:
    """Raises ConfigurationError."""
    if not isinstance(currency, str) or not _CODE.fullmatch(currency):
        raise ConfigurationError(field, f"{shown(currency)} is no currency", ALLOWED)


def rates(providers: Mapping[str, Money], currency: str | None) -> dict[str, float]:
    """Return each provider's rate. `currency`: the installation's; None: the one that all have.

    Raises ConfigurationError where prices of two currencies would be added up.
    """
    if currency is None:
        currency = _common(providers)
    return {name: _rate(f"providers.{name}", one, currency) for name, one in providers.items()}


def _common(providers: Mapping[str, Money]) -> str | None:
    of: dict[str, str] = {}
    for name, one in providers.items():
        if one.currency is not None:
            of.setdefault(one.currency, name)
    if len(of) > 1:
        found = ", ".join(f"{name} in {currency}" for currency, name in of.items())
        problem = f"is missing: providers have prices of several currencies ({found})"
        raise ConfigurationError("currency", problem, f"{ALLOWED}, in which all is added up")
    return next(iter(of), None)


def _rate(within: str, money: Money, currency: str | None) -> float:
    field = f"{within}.rate"
    if money.currency in (None, currency):
        if money.rate is not None:
            problem = "is given for a provider whose prices are in the currency of this file"
            raise ConfigurationError(field, problem, f"no rate, or another {within}.currency")
        return 1.0
    if money.rate is None:
        ours = f"all is added up in {currency}"
        problem = f"is missing: its prices are in {money.currency}, and {ours}"
        raise ConfigurationError(field, problem, _RATES)
    return money.rate
