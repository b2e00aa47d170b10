"""Providers of machines: their checks and offers."""

from __future__ import annotations

from enum import StrEnum

from fairlead.documents.base import View


class ProviderFindingView(View, frozen=True):
    """What was tried at a provider. `fault`: what is wrong with it; null: nothing. `note`: what an
    operator should know of it."""

    what: str
    fault: str | None
    note: str | None


class ProviderCheckView(View, frozen=True):
    findings: tuple[ProviderFindingView, ...]


class ProviderTrialView(View, frozen=True):
    """A machine that is made to check its provider, and ended. `steps`: what was done so far."""

    steps: tuple[str, ...]
    fault: str | None
    is_over: bool


class CatalogSource(StrEnum):
    """Where a provider's prices come from."""

    RELEASE = "release"
    """A file of this release."""
    API = "api"
    """What was last read from the provider's API."""
    PROVIDER = "provider"
    """The provider tells them with each list of its offers."""


class ProviderOfferView(View, frozen=True):
    """A type of machine that a provider rents in one zone. `price` is per hour; `memory` and `disk`
    are bytes that jobs can have. `gpu`: as a job's file names it; null: none. `reservation`: the
    capacity that the account has reserved, which is for the runs that name it."""

    instance_type: str
    region: str
    zone: str | None
    spot: bool
    price: float
    cpu: float
    memory: int
    disk: int
    gpu: str | None
    reservation: str | None = None


class ProviderOffersView(View, frozen=True):
    """What a provider rents. `read_at`: when its prices were read from its API; null: never, or
    each time. `notes`: what is to be known of them, as sentences."""

    source: CatalogSource
    read_at: str | None
    notes: tuple[str, ...]
    offers: tuple[ProviderOfferView, ...]
