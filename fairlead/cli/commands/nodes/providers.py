"""Commands about providers of machines."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Json
from fairlead.cli.errors import EXIT_FAILED, EXIT_USAGE, CliError
from fairlead.documents.providers import (
    CatalogSource,
    ProviderCheckView,
    ProviderFindingView,
    ProviderOffersView,
    ProviderOfferView,
    ProviderTrialView,
)
from fairlead.model.costs import price_words
from fairlead.rest import ControllerClient, decode

_LOOK_EVERY = 1.0


def check(
    name: str, /, *, boot: bool = False, instance_type: str | None = None, json: Json = False
) -> int:
    """Check a provider of machines.

    Parameters
    ----------
    name
        The provider's name in the controller's file.
    boot
        Make one machine, wait until it is reached, and end it. You pay for a few minutes of it.
    instance_type
        The type of that machine; default: the cheapest type on demand.
    """
    if instance_type is not None and not boot:
        raise CliError("--instance-type is of the machine that --boot makes: give both", EXIT_USAGE)
    path = _path(name)
    client = settings.client()
    data = client.post(f"{path}/check", {})
    found = list(decode(data, ProviderCheckView).findings)
    if not json:
        for one in found:
            _show(one)
    if boot and not any(one.fault for one in found):
        trial = _try_one(client, f"{path}/trial", instance_type, shows=not json)
        found += [ProviderFindingView(what=step, fault=None, note=None) for step in trial.steps]
        if trial.fault is not None:
            last = ProviderFindingView(what="a machine", fault=trial.fault, note=None)
            found.append(last)
            if not json:
                _show(last)
    if json:
        output.emit_json(msgspec.json.encode(ProviderCheckView(findings=tuple(found))))
    return EXIT_FAILED if any(one.fault for one in found) else 0


def offers_list(name: str, /, *, json: Json = False) -> int:
    """List what a provider rents, and say how old its prices are.

    Parameters
    ----------
    name
        The provider's name in the controller's file.
    """
    path = _offers_path(name)
    return _show_offers(settings.client().get(path), json=json)


def offers_refresh(name: str, /, *, json: Json = False) -> int:
    """Read types and prices from a provider's API.

    Parameters
    ----------
    name
        The provider's name in the controller's file.
    """
    path = f"{_offers_path(name)}/refresh"
    data = settings.client().post(path, {})
    if json:
        output.emit_json(data)
        return 0
    found = decode(data, ProviderOffersView)
    types = {one.instance_type for one in found.offers}
    output.emit(f"{len(found.offers)} offers of {len(types)} types; prices: {_source(found)}")
    for note in found.notes:
        output.emit(f"note  {note}")
    return 0


def _path(name: str) -> str:
    if not name:
        problem = "NAME is empty: give a provider's name, as in the controller's file"
        raise CliError(problem, EXIT_USAGE)
    return f"/v1/providers/{quote(name, safe='')}"


def _offers_path(name: str) -> str:
    return f"{_path(name)}/offers"


def _show_offers(data: bytes, *, json: bool) -> int:
    if json:
        output.emit_json(data)
        return 0
    found = decode(data, ProviderOffersView)
    output.emit_table(
        ("TYPE", "WHERE", "KIND", "PRICE/H", "CPU", "MEMORY", "GPU"),
        [
            (
                one.instance_type,
                one.zone or one.region,
                _kind(one),
                price_words(one.price),
                f"{one.cpu:g}",
                f"{one.memory / 1e9:.1f}GB",
                one.gpu or "-",
            )
            for one in found.offers
        ],
    )
    output.emit(f"prices: {_source(found)}")
    for note in found.notes:
        output.emit(f"note  {note}")
    return 0


def _kind(offer: ProviderOfferView) -> str:
    if offer.reservation is not None:
        return f"reserved as {offer.reservation}"
    return "spot" if offer.spot else "-"


def _source(found: ProviderOffersView) -> str:
    if found.source is CatalogSource.API:
        return f"read from the API {output.ago(found.read_at, datetime.now(UTC))}"
    if found.source is CatalogSource.RELEASE:
        return "of the release; they were never read from the API"
    return "the provider tells them each time"


def _try_one(
    client: ControllerClient, path: str, instance_type: str | None, *, shows: bool
) -> ProviderTrialView:
    trial = decode(client.post(path, {"instance_type": instance_type}), ProviderTrialView)
    shown = 0
    while True:
        for step in trial.steps[shown:] if shows else ():
            output.emit(f"ok    {step}")
        shown = len(trial.steps)
        if trial.is_over:
            return trial
        time.sleep(_LOOK_EVERY)
        trial = decode(client.get(path), ProviderTrialView)


def _show(one: ProviderFindingView) -> None:
    if one.fault is not None:
        output.emit(f"FAIL  {one.what}: {one.fault}")
    elif one.note is not None:
        output.emit(f"note  {one.what}: {one.note}")
    else:
        output.emit(f"ok    {one.what}")
