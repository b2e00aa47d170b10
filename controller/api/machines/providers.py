"""Providers of machines as REST."""

from __future__ import annotations

import msgspec

from controller.api.http.routes import Call, Route
from controller.api.views import derived
from controller.machines.trial import Trial
from fairlead.documents import ProviderCheckView, ProviderFindingView, ProviderTrialView


class NoBody(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is asked for."""


class TrialBody(msgspec.Struct, frozen=True, kw_only=True):
    """`instance_type` null: the cheapest machine on demand."""

    instance_type: str | None = None


async def check_provider(call: Call) -> ProviderCheckView:
    found = await call.service.providers.check(call.path("provider"), call.caller)
    return ProviderCheckView(findings=tuple(derived(ProviderFindingView, one) for one in found))


async def begin_trial(call: Call) -> ProviderTrialView:
    body: TrialBody = call.body
    name = call.path("provider")
    return _view(await call.service.providers.try_one(name, body.instance_type, call.caller))


async def get_trial(call: Call) -> ProviderTrialView:
    return _view(call.service.providers.trial(call.path("provider"), call.caller))


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
)
