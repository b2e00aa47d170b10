"""The quick parser takes what the library takes, or leaves it to the library."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli import quick
from fairlead.cli.commands.runs.run_list import parameters
from fairlead.cli.main import make_app
from fairlead.queries import RunQuery

WORDS = ("job.yaml", "train", "3", "0", "A=1", "error", "replace", "sometimes", "-1", "--", "", "-")


def by_the_library(arguments: list[str]) -> dict[str, object] | None:
    """Return the arguments as the library parses them; None: it refuses them."""
    from cyclopts import CycloptsError

    try:
        _, bound, _ = make_app(arguments).parse_args(
            arguments, exit_on_error=False, print_error=False
        )
    except CycloptsError:
        return None
    given = dict(bound.arguments)
    bound.apply_defaults()
    found = dict(bound.arguments)
    # What only the library parses goes to another function, and is left out if it was not given.
    taken = inspect.signature(quick.function_at(quick.COMMANDS[arguments[0]].target)).parameters
    found = {name: value for name, value in found.items() if name in taken or name in given}
    match found.get("file"):
        case [only]:  # several files are applied by another function
            found["file"] = str(only)
    return found


def quickly(arguments: list[str]) -> dict[str, object] | None:
    found = quick.parsed(arguments)
    if found is None:
        return None
    place, given = found
    bound = inspect.signature(quick.function_at(place)).bind(**given)
    bound.apply_defaults()
    arguments_found = dict(bound.arguments)
    if "file" in arguments_found:  # as the library's Path has it
        arguments_found["file"] = str(Path(arguments_found["file"]))
    return arguments_found


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(sorted(quick.COMMANDS)))
    options = sorted(quick.COMMANDS[name].options)
    word = st.sampled_from((*options, *options, *WORDS, "--help", "--no-json", "--json=x"))
    return [name, *draw(st.lists(word, max_size=6))]


@given(lines())
def test_what_is_parsed_quickly_is_what_the_library_parses(arguments: list[str]) -> None:
    found = quickly(arguments)
    if found is not None:
        assert found == by_the_library(arguments)


@pytest.mark.parametrize(
    "line",
    [
        "apply -f job.yaml",
        "apply job.yaml -d --name train -e A=1 -e B --if-exists replace --parent sweep --json",
        "ps",
        "ps train* -a -s done -s failed -u ada -w --limit 5 --json",
        "logs train 0 -f -t --tail 10",
        "logs train --job 0 --attempt 1 --since 10m --offset 4 --all-jobs",
        "stop train",
        "stop train other --abort third --json",
        "stop sweep --jobs 3,7-9",
    ],
)
def test_usual_lines_need_no_library(line: str) -> None:
    found = quickly(line.split())
    assert found is not None
    assert found == by_the_library(line.split())


@pytest.mark.parametrize(
    "line",
    [
        "apply",
        "apply --help",
        "apply -f a -f b",
        "ps --limit x",
        "inspect train",
        "logs",
        "stop",
        "stop --abort",
    ],
)
def test_all_else_is_left_to_the_library(line: str) -> None:
    assert quick.parsed(line.split()) is None


SLOW = {"cyclopts", "rich", "asyncio", "importlib.metadata", "inspect", "typing_extensions", "ssl"}
OWN_CHECK = {"fairlead.configuration.parse", "fairlead.configuration.runs.task"}
RARE = {"websockets", "tarfile", "difflib", "json"}
READ_HERE = "runs.applying:apply"
LOGS_READ, TOLD = "jobs.log_reading:logs", "runs.attaching:tell"
"""Loaded while the controller works."""
BUDGET = {
    "runs.as_written:apply": SLOW | OWN_CHECK | RARE | {"yaml", "msgspec", "typing"},
    READ_HERE: SLOW | OWN_CHECK | RARE | {"fairlead.documents"},
    "runs.run_list:ps": SLOW | OWN_CHECK | RARE | {"yaml", "msgspec", "typing"},
    "jobs.log_asking:logs": SLOW | OWN_CHECK | RARE | {"yaml", "msgspec", "typing"},
    LOGS_READ: SLOW | OWN_CHECK | RARE | {"yaml", "fairlead.documents"},
    "runs.stopping:stop": SLOW | OWN_CHECK | RARE | {"yaml", "msgspec", "typing"},
    TOLD: SLOW | OWN_CHECK | RARE | {"yaml", "fairlead.documents"},
}
"""What a command must not load before its first request: each costs 5 to 80 ms of CPU time."""


@pytest.mark.parametrize("place", sorted(BUDGET))
def test_a_command_keeps_its_budget_of_imports(place: str) -> None:
    program = f"from fairlead.cli import main, quick; quick.function_at({place!r})"
    assert not loaded_by(program) & BUDGET[place]


def test_a_run_is_followed_within_a_budget_of_imports() -> None:
    applied = "from fairlead.cli import main, quick; quick.function_at('runs.as_written:apply')"
    program = f"{applied}; from fairlead.cli.commands.runs import as_written"
    assert not loaded_by(f"{program}; as_written._load(detach=False)") & (
        SLOW | OWN_CHECK | RARE | {"yaml"}
    )


def loaded_by(program: str) -> set[str]:
    # -S: what the environment's .pth files load is not the command's.
    code = f"import sys; sys.path[:] = {sys.path!r}; {program}; print(' '.join(sys.modules))"
    argv = [sys.executable, "-S", "-c", code]
    return set(subprocess.run(argv, capture_output=True, check=True, text=True).stdout.split())


def test_every_quick_command_is_tested_for_its_budget() -> None:
    targets = {command.target for command in quick.COMMANDS.values()}
    assert targets | {READ_HERE, LOGS_READ, TOLD} == set(BUDGET)


@given(
    name=st.none() | st.just("a*"),
    all_=st.booleans(),
    status=st.lists(st.sampled_from(["done", "failed"]), max_size=2).map(tuple),
    user=st.none() | st.just("ada"),
    limit=st.sampled_from([1, 100, 1000]),
)
def test_ps_asks_as_the_query_of_runs_does(
    name: str | None, all_: bool, status: tuple[str, ...], user: str | None, limit: int
) -> None:
    asked = parameters(name, all_, status, user, limit)
    query = RunQuery(name=name, all=all_, status=",".join(status) or None, user=user, limit=limit)
    assert {key: value for key, value in asked.items() if value is not None} == query.parameters()
