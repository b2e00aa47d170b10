"""`explain` shows why a run waits; `plan` shows where one would go, without submitting it; `offer`
shows what is free."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import ConfigurationFile, Json
from fairlead.cli.commands.pages import whole_list
from fairlead.cli.commands.runs.applying import read_configuration, tell_translation
from fairlead.cli.errors import EXIT_FAILED
from fairlead.documents.nodes import NodeView
from fairlead.documents.plans import ExplainView, GroupPlanView, OffersView, PlanView, UnderWayView
from fairlead.documents.sweeps import SweepPlanView
from fairlead.model.answers import NodeAnswer, OfferedPlace, Waiting
from fairlead.model.costs import price_words
from fairlead.rest import decode, run_path
from fairlead.submission import with_code_unsent
from fairlead.summaries.offers import Offer, offers
from fairlead.summaries.progress import grant_sentences
from fairlead.wire.sizes import human_size


def explain(run: str, /, *, json: Json = False) -> int:
    """Show what a run (id or name) waits for: what it lacks on each node, and which runs are before
    it. For jobs that have an allocation: what comes next, and until when."""
    data = settings.client().get(run_path(run, "explain"))
    if json:
        output.emit_json(data)
        return 0
    found = decode(data, ExplainView)
    output.emit(f"{found.name} ({found.run}): {found.status}")
    if found.about is not None:
        output.emit(found.about)
    shown: list[tuple[NodeAnswer, ...]] = []
    for waiting in found.waiting:
        _show_waiting(waiting)
        if waiting.nodes in shown:
            output.emit("  the nodes: as above")
        else:
            output.emit_table(("NODE", "WHY NOT"), [_row(node) for node in waiting.nodes])
            shown.append(waiting.nodes)
    for one in found.under_way:
        output.emit(_under_way(one))
    return 0


def _under_way(one: UnderWayView) -> str:
    ends = "" if one.until is None else f" (until {one.until})"
    if one.ends_as is not None:
        ends = f" (ends as {one.ends_as} at {one.until} if that does not come)"
    return f"{_names(one.jobs)}, {one.status}: {one.what}{ends}"


def _show_waiting(waiting: Waiting) -> None:
    together = ", all or none" if waiting.together and len(waiting.jobs) > 1 else ""
    output.emit(f"{_names(waiting.jobs)}{together}: {waiting.why}")
    if waiting.machines is not None:
        output.emit(f"  {waiting.machines}")
    ahead = f"; before it: {', '.join(waiting.ahead)}" if waiting.ahead else ""
    output.emit(f"  number {waiting.position} in the queue{ahead}")
    if waiting.nominated:
        output.emit(f"  nominated for {', '.join(dict.fromkeys(waiting.nominated))}")


def _row(node: NodeAnswer) -> tuple[str, str]:
    return node.node, "; ".join(node.why) or "it fits"


def _names(jobs: tuple[str, ...]) -> str:
    return jobs[0] if len(jobs) == 1 else f"{jobs[0]} and {len(jobs) - 1} more"


def plan(
    file: ConfigurationFile,
    *,
    name: Annotated[str | None, Parameter(name=["-n", "--name"])] = None,
    env: Annotated[tuple[str, ...], Parameter(name=["-e", "--env"], negative=())] = (),
    json: Json = False,
) -> int:
    """Show where each job of a configuration would go now; nothing is submitted. The exit status is
    1 when it would be refused.

    Parameters
    ----------
    file
        The configuration, a YAML file; - for standard input.
    name
        The run's name, instead of the configuration's.
    env
        As for `apply`.
    """
    document, configuration = read_configuration(file, env, os.environ)
    tell_translation(configuration)
    planned = with_code_unsent(
        configuration, file.resolve().parent, str(file), os.environ, document
    )
    body = {"configuration": planned, "name": name}
    data = settings.client().post("/v1/plan", body)
    found = decode(data, PlanView)
    if json:
        output.emit_json(data)
    else:
        _show_plan(found)
    return 0 if found.refused is None else EXIT_FAILED


def _show_plan(found: PlanView) -> None:
    if found.refused is not None:
        output.emit(f"it would be refused: {found.field}: {found.refused}")
        return
    if found.warning is not None:
        output.note(found.warning)
    output.emit_table(
        ("JOB", "NODE", "GPUS", "WHY"),
        [
            (
                place.job,
                place.node or "-",
                ", ".join(place.gpus) or "-",
                _why(place.why, place.victims),
            )
            for place in found.jobs
        ],
    )
    for sentence in grant_sentences(
        (place.job, place.asked, place.granted)
        for place in found.jobs
        if place.asked is not None and place.granted is not None
    ).values():
        output.emit(sentence)
    for group in found.groups:
        output.emit(_begins_with(group))
    if found.sweep is not None:
        output.emit(_sweep(found.sweep))
    if found.rent is not None and found.rent.machines:
        machines = ", ".join(found.rent.machines)
        output.emit(f"it rents {machines}: {price_words(found.rent.per_hour)} an hour")
    for sentence in () if found.rent is None else found.rent.why:
        output.emit(sentence)


def _begins_with(group: GroupPlanView) -> str:
    where = "without an image" if group.image is None else f"in image {group.image}"
    parts = [f"{group.group} begins {where}"]
    if group.python is not None:
        parts.append(f"a venv with Python {group.python}")
    if group.setup:
        parts.append(f"setup of {group.setup} command{'s' if group.setup > 1 else ''}")
    return ", ".join(parts)


def _sweep(sweep: SweepPlanView) -> str:
    at_once = sweep.sets if sweep.parallel is None else min(sweep.sets, sweep.parallel)
    limit = "as many at once as there is room for"
    if sweep.parallel is not None:
        limit = f"{at_once:,} at once at most"
    sets = f"{sweep.sets:,} parameter {'set' if sweep.sets == 1 else 'sets'}"
    text = f"a sweep of {sets}, {limit}"
    if not sweep.reuse_container:
        return text
    jobs = f"about {sweep.sets / at_once:,.0f} in each" if sweep.parallel else "one after another"
    return (
        f"{text}; the jobs share containers, {jobs} (reuse_container: a container takes jobs for a"
        " minute, and none after a job that leaves something)"
    )


def _why(why: str | None, victims: tuple[str, ...]) -> str:
    return f"{why}: {', '.join(victims)}" if why and victims else why or ""


class _Nodes(msgspec.Struct):
    nodes: list[NodeView]


class _Offers(msgspec.Struct, frozen=True):
    offers: list[Offer]


def offer(
    *,
    file: Annotated[Path | None, Parameter(name=["-f", "--file"])] = None,
    gpu: str | None = None,
    json: Json = False,
) -> int:
    """Show what is free now, by the kind of GPU; with a configuration, the nodes and the machines
    to rent that its jobs could have, in the order in which they are tried.

    Parameters
    ----------
    file
        The configuration, a YAML file; - for standard input.
    gpu
        Only kinds of GPU whose name contains this.
    """
    if file is not None:
        return _offers_for(file, json=json)
    nodes = decode(whole_list(settings.client(), "/v1/nodes", "nodes"), _Nodes).nodes
    found = [one for one in offers(nodes) if gpu is None or gpu.lower() in (one.gpu or "").lower()]
    if json:
        output.emit_json(msgspec.json.encode(_Offers(found)))
        return 0
    output.emit_table(
        ("GPU", "MEMORY", "FREE", "ON ONE NODE", "CPU FREE", "MEMORY FREE", "NODES"),
        [
            (
                one.gpu or "none",
                human_size(one.gpu_memory) if one.gpu else "-",
                f"{one.free} of {one.total}" if one.gpu else "-",
                str(one.most_on_a_node) if one.gpu else "-",
                f"{one.cpu_free:g}",
                human_size(one.memory_free),
                ", ".join(one.nodes),
            )
            for one in found
        ],
    )
    return 0


def _offers_for(file: Path, *, json: bool) -> int:
    document, configuration = read_configuration(file, (), os.environ)
    tell_translation(configuration)
    planned = with_code_unsent(
        configuration, file.resolve().parent, str(file), os.environ, document
    )
    data = settings.client().post("/v1/offers", {"configuration": planned, "name": None})
    if json:
        output.emit_json(data)
        return 0
    places = decode(data, OffersView).places
    output.emit_table(
        ("JOBS", "NODE", "FLEET", "TYPE", "WHERE", "PRICE/H", "NOT NOW, BECAUSE"),
        [_offer_cells(one) for one in places],
    )
    if not places:
        output.note(
            "no node has room for its jobs now, and no fleet that they may use rents machines; "
            "`fairlead plan` says what each node lacks"
        )
    return 0


def _offer_cells(one: OfferedPlace) -> tuple[str, ...]:
    spot = " (spot)" if one.spot else ""
    return (
        _names(one.jobs),
        one.node or "-",
        one.fleet,
        f"{one.instance_type}{spot}" if one.instance_type else "-",
        one.zone or one.region or "-",
        "-" if one.price is None else price_words(one.price),
        one.why or "",
    )
