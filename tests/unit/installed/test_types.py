"""What a type checker sees of an installed client."""

from __future__ import annotations

import enum
import inspect
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fairlead import AsyncClient, AsyncRun, Client, LocalPort, Offer, Output, Result, Run, views
from tests.support.installed import Environment

PROGRAM = """
from collections.abc import Iterator

from fairlead import AsyncClient, AsyncRun, Client, Output, Run, Task
from fairlead.views import AttemptView, EventView, MetricsAnswer, NodeView, PlanView, RunSummary

client = Client()
run: Run = client.submit(Task(commands=["true"]), name="x")
attempts: list[AttemptView] = [one for job in run.state.jobs for one in job.attempts]
status: str = run.wait(check=False).status
pieces: Iterator[Output] = run.logs("main/0")
events: Iterator[EventView] = run.events()
used: MetricsAnswer = run.metrics()
nodes: list[NodeView] = client.nodes()
runs: list[RunSummary] = client.runs()
plan: PlanView = client.plan("train.yml")
free = [(offer.gpu, offer.free) for offer in client.offers()]
outputs = [file.name for one in run.outputs() for file in one.files or ()]


async def main() -> str | None:
    with run.forward(8080) as local:
        print(local.address)
    async with AsyncClient() as other:
        found = await other.run("x")
        async with found.forward(80, job="main/0") as port:
            print(port.port)
        async for piece in found.logs(follow=True):
            print(piece.text, piece.end)
        made: AsyncRun = await other.submit(Task(commands=["true"]), name="y", parent=found)
        stopped: AsyncRun = await made.stop(abort=True)
        listed: list[RunSummary] = await other.runs("y*", all=True, status=["done"])
        left = [one.files for one in await stopped.outputs(0) if listed]
        async for event in other.events(made, after=3):
            print(event.seq, left)
        return found.state.message
"""


def checked(environment: Environment, folder: Path, program: str, *options: str) -> str:
    """What mypy says of a program that uses the installed package."""
    (folder / "program.py").write_text(program)
    python = ("--python-executable", str(environment.bin / "python"))
    cache = ("--cache-dir", str(environment.bin.parent / "mypy"))  # the package is read once
    argv = [sys.executable, "-m", "mypy", "--strict", *python, *cache, *options, "program.py"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.long
def test_a_strict_type_checker_knows_all_that_the_client_returns(
    for_users: Environment, tmp_path: Path
) -> None:
    said = checked(for_users, tmp_path, PROGRAM, "--disallow-any-expr")
    assert said == "Success: no issues found in 1 source file\n"


@pytest.mark.long
def test_a_name_that_is_not_there_is_an_error(for_users: Environment, tmp_path: Path) -> None:
    said = checked(for_users, tmp_path, "from fairlead import Cleint\n")
    assert 'Module "fairlead" has no attribute "Cleint"' in said


@pytest.mark.long
@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        ("run.stop(abort='yes')", 'expected "bool"'),
        ("client.runs(states=['done'])", 'Unexpected keyword argument "states"'),
        ("client.set_secret('TOKEN')", "Too few arguments"),
    ],
)
def test_a_wrong_argument_of_an_asynchronous_method_is_an_error(
    for_users: Environment, tmp_path: Path, call: str, complaint: str
) -> None:
    program = f"""
from fairlead import AsyncClient, AsyncRun


async def main(client: AsyncClient, run: AsyncRun) -> None:
    await {call}
"""
    assert complaint in checked(for_users, tmp_path, program)


def test_an_asynchronous_method_shows_the_words_of_the_blocking_one() -> None:
    assert AsyncClient.set_secret.__doc__ == Client.set_secret.__doc__
    assert inspect.signature(AsyncRun.logs) == inspect.signature(Run.logs)
    assert inspect.iscoroutinefunction(AsyncRun.stop)


PUBLIC = (Client, Run, AsyncClient, AsyncRun, Output, Offer, LocalPort)


def methods(of: type) -> Iterator[tuple[str, Callable[..., object]]]:
    for name, member in vars(of).items():
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


@pytest.mark.parametrize("of", PUBLIC)
def test_every_public_method_says_what_it_does(of: type) -> None:
    assert of.__doc__
    assert [name for name, method in methods(of) if not method.__doc__] == []


def reached(of: object, seen: set[type]) -> set[type]:
    """The structs and enumerations within a type."""
    if isinstance(of, type) and issubclass(of, msgspec.Struct | enum.Enum) and of not in seen:
        seen.add(of)
        if issubclass(of, msgspec.Struct):
            for field in typing.get_type_hints(of).values():
                reached(field, seen)
    for part in typing.get_args(of):
        reached(part, seen)
    return seen


def test_every_type_that_the_client_returns_is_exported() -> None:
    returned: set[type] = set()
    for of in PUBLIC:
        for _, method in methods(of):
            late = {"LocalPort": LocalPort}  # imported for type checkers alone
            hints = typing.get_type_hints(inspect.unwrap(method), localns=late)
            reached(hints.get("return"), returned)
    names = {one.__name__ for one in returned - {Output, Offer, Result}}
    assert names - set(views.__all__) == set()
    assert len(names) > 40
