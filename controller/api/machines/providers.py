"""Providers of machines as REST."""

from __future__ import annotations

import msgspec

from controller.api.http.routes import Call, Route
from controller.api.views import derived, iso_or_none
from controller.lifecycle.machines.model import Offer
from controller.machines.trial import Trial
from controller.service.machines.providers import Offered
from fairlead.documents.providers import (
    ProviderCheckView,
    ProviderFindingView,
    ProviderOffersView,
    ProviderOfferView,
    ProviderTrialView,
)


class NoBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing is asked for."""


class TrialBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`instance_type` null: the cheapest machine on demand."""

    instance_type: str | None = None


async def check_provider(call: Call) -> ProviderCheckView:
    found = await call.service.machines.providers.check(call.path("provider"), call.caller)
    return ProviderCheckView(findings=tuple(derived(ProviderFindingView, one) for one in found))


async def begin_trial(call: Call) -> ProviderTrialView:
    body: TrialBody = call.body
    name = call.path("provider")
    return _view(
        await call.service.machines.providers.try_one(name, body.instance_type, call.caller)
    )


async def get_trial(call: Call) -> ProviderTrialView:
    return _view(call.service.machines.providers.trial(call.path("provider"), call.caller))


async def list_offers(call: Call) -> ProviderOffersView:
    return _offers(
        await call.service.machines.providers.offered(call.path("provider"), call.caller)
    )


async def refresh_offers(call: Call) -> ProviderOffersView:
    return _offers(
        await call.service.machines.providers.refresh(call.path("provider"), call.caller)
    )


def _offers(found: Offered) -> ProviderOffersView:
    return ProviderOffersView(
        source=found.source,
        read_at=iso_or_none(found.read_at),
        notes=found.notes,
        offers=tuple(derived(ProviderOfferView, one, gpu=_gpu(one)) for one in found.offers),
    )


def _gpu(offer: Offer) -> str | None:
    return ", ".join(f"{one.name}:{one.count}" for one in offer.gpus) or None


def _view(trial: Trial) -> ProviderTrialView:
    return ProviderTrialView(steps=tuple(trial.steps), fault=trial.fault, is_over=trial.is_over)


ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        path="/v1/providers/{provider}/check",
        summary="Try what orders at a provider of machines need",
        handler=check_provider,
        body=NoBody,
        answer=ProviderCheckView,
    ),
    Route(
        method="POST",
        path="/v1/providers/{provider}/trial",
        summary="Make one machine at a provider and end it",
        handler=begin_trial,
        body=TrialBody,
        answer=ProviderTrialView,
    ),
    Route(
        method="GET",
        path="/v1/providers/{provider}/trial",
        summary="How far that is",
        handler=get_trial,
        answer=ProviderTrialView,
    ),
    Route(
        method="GET",
        path="/v1/providers/{provider}/offers",
        summary="What a provider of machines rents, and how old its prices are",
        handler=list_offers,
        answer=ProviderOffersView,
    ),
    Route(
        method="POST",
        path="/v1/providers/{provider}/offers/refresh",
        summary="Read types and prices from a provider's API",
        handler=refresh_offers,
        body=NoBody,
        answer=ProviderOffersView,
    ),
)
