"""What rented machines have cost, as the API, the client and the command tell it."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec


class CostKey(StrEnum):
    """By what costs are summed up."""

    USER = "user"
    FLEET = "fleet"
    RUN = "run"


class CostPeriod(StrEnum):
    """Into what costs are split."""

    DAY = "day"
    MONTH = "month"


class CostRow(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of some hours of machines, in the currency of the installation.

    A field by which it is not summed up is null, and so is the user of machines that their fleet
    kept without a run. `run` is the id. `day`: such as 2026-01-31, and `month`: such as
    2026-01, in UTC; null unless it is asked for each of them.
    """

    user: str | None
    fleet: str | None
    run: str | None
    run_name: str | None
    hours: float
    cost: float
    day: str | None = None
    month: str | None = None

    @property
    def period(self) -> str | None:
        """Return the day or month of the row; None: it is of the whole time."""
        return self.day or self.month


def money(amount: float) -> str:
    """Return an amount as users read it: with hundredths, and below 1 with four digits that count,
    down to a millionth."""
    digits = 2
    if 0.0 < abs(amount) < 1.0:
        digits = min(6, 3 - math.floor(math.log10(abs(amount))))
    whole, part = f"{amount:.{digits}f}".split(".")
    return f"{whole}.{part.rstrip('0'):0<2}"


def price_words(price: float) -> str:
    """Return a price of an hour, or a limit of prices, as users read it: down to a millionth, never
    below it. So a limit that is copied from it allows the price."""
    whole, part = f"{in_millionths(price):.6f}".split(".")
    return f"{whole}.{part.rstrip('0'):0<2}"


def in_millionths(price: float) -> float:
    """Return the price rounded up to a millionth, as it can be written: 0.1 times 1.1 is more than
    0.11, which a limit of 0.11 must allow."""
    return math.ceil(price * 1e6 - 1e-3) / 1e6
