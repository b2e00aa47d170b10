"""A reader who follows a YAML to its plan seldom comes back to a room that was left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import FrameType

import pytest

import fairlead.configuration
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.common import RunFields
from fairlead.configuration.runs.plan import Defaults, Plan, to_run
from fairlead.configuration.text.source import read

HOUSE = Path(fairlead.configuration.__file__).parent
MAX_RETURNS = 4
RUNS = {
    "a task": b"type: task\nname: train\nenv: [A=1]\ncommands: [x]\nresources: {gpu: 1}\n",
    "a gang": b"type: task\nnodes: 2\ncommands: [x]\n",
    "a service": b"type: service\nport: 80\ncommands: [x]\nreplicas: 2\n",
    "a dev environment": b"type: dev-environment\nide: vscode\n",
}


@pytest.mark.parametrize("content", RUNS.values(), ids=RUNS)
def test_a_yaml_comes_back_to_few_rooms_on_its_way_to_the_plan(content: bytes) -> None:
    _planned(content)  # what is computed once for each type is no part of the way
    walk = _rooms_with_the_whole(lambda: _planned(content))
    assert {"text", "runs"} <= set(walk)
    assert len(walk) - len(set(walk)) <= MAX_RETURNS, walk


def _planned(content: bytes) -> Plan:
    written = read(content, name="run.yaml").data
    assert isinstance(written, dict)
    return to_run(parse(written), written, Defaults())


def _rooms_with_the_whole(act: Callable[[], object]) -> list[str]:
    """Return the rooms whose functions get the whole configuration, in their order; functions that
    see one field's value are no stop on the way."""
    stops: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(HOUSE)):
            return
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(_is_whole(frame.f_locals.get(name)) for name in given):
            within = Path(code.co_filename).relative_to(HOUSE).parts
            stops.append(within[0] if len(within) > 1 else "configuration")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return [room for room, _ in groupby(stops)]


def _is_whole(value: object) -> bool:
    if isinstance(getattr(value, "run", None), RunFields):
        return True
    return isinstance(value, RunFields | bytes) or (isinstance(value, dict) and "type" in value)
