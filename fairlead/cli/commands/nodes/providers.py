"""Commands about providers of machines."""

from __future__ import annotations

import time
from urllib.parse import quote

import msgspec

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Json
from fairlead.cli.errors import EXIT_FAILED, EXIT_USAGE, CliError
from fairlead.documents import ProviderCheckView, ProviderFindingView, ProviderTrialView
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
        Make one machine, wait until it is reached, and end it. It costs a few minutes of its price.
    instance_type
        The type of that machine; else the cheapest one on demand.
    """
    if instance_type is not None and not boot:
        raise CliError("--instance-type is of the machine that --boot makes: give both", EXIT_USAGE)
    client = settings.client()
    path = f"/v1/providers/{quote(name, safe='')}"
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
