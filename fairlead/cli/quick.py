"""Parses the arguments of the commands that are typed most, without the library for all of them.

That library costs 60 ms of CPU time, a third of a short command (`./dev bench command`). What this
module does not know, it leaves to the library: help, other commands, shortened and wrong options.
A test compares the two, so an option has one meaning.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from types import ModuleType


class Takes(Enum):
    """What follows an option."""

    NOTHING = auto()
    TEXT = auto()
    NUMBER = auto()


# Not NamedTuples: `typing` takes 3 ms to load.
class Option:
    """`name`: the function's parameter. `repeated`: it may be given again; by position, any number
    of times."""

    def __init__(
        self,
        name: str,
        takes: Takes = Takes.TEXT,
        *,
        repeated: bool = False,
        among: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.takes = takes
        self.repeated = repeated
        self.among = among


class Quick:
    """A command. `target`: module of `cli.commands` and function; `by_position`: its parameters
    that have no option's name before them, of which the first `needed` must be given."""

    def __init__(
        self,
        target: str,
        by_position: tuple[Option, ...],
        needed: int,
        options: dict[str, Option],
    ) -> None:
        self.target = target
        self.by_position = by_position
        self.needed = needed
        self.options = options


_JSON = {"--json": Option("json", Takes.NOTHING)}
_FILE = Option("file")
_FOLLOW = Option("follow", Takes.NOTHING)
_TIMESTAMPS = Option("timestamps", Takes.NOTHING)
_DETACH = Option("detach", Takes.NOTHING)
_ALL = Option("all_", Takes.NOTHING)
_WATCH = Option("watch", Takes.NOTHING)
_NUMBER_OF = {"--offset": "offset", "--tail": "tail"}
COMMANDS: dict[str, Quick] = {
    "apply": Quick(
        "runs.as_written:apply",
        (_FILE,),
        1,
        {
            "-f": _FILE,
            "--file": _FILE,
            "-d": _DETACH,
            "--detach": _DETACH,
            **dict.fromkeys(("-n", "--name"), Option("name")),
            **dict.fromkeys(("-e", "--env"), Option("env", repeated=True)),
            "--if-exists": Option("if_exists", among=("error", "keep", "replace")),
            "--parent": Option("parent"),
            "--watch": _WATCH,
            **_JSON,
        },
    ),
    "ps": Quick(
        "runs.run_list:ps",
        (Option("name"),),
        0,
        {
            "-a": _ALL,
            "--all": _ALL,
            "-w": _WATCH,
            "--watch": _WATCH,
            **dict.fromkeys(("-s", "--status"), Option("status", repeated=True)),
            **dict.fromkeys(("-u", "--user"), Option("user")),
            "--limit": Option("limit", Takes.NUMBER),
            **_JSON,
        },
    ),
    "logs": Quick(
        "jobs.log_asking:logs",
        (Option("run"), Option("job_")),
        1,
        {
            "-f": _FOLLOW,
            "--follow": _FOLLOW,
            "-t": _TIMESTAMPS,
            "--timestamps": _TIMESTAMPS,
            "--job": Option("job"),
            "--attempt": Option("attempt"),
            "--since": Option("since"),
            **{name: Option(of, Takes.NUMBER) for name, of in _NUMBER_OF.items()},
            "--all-jobs": Option("all_jobs", Takes.NOTHING),
        },
    ),
    "stop": Quick(
        "runs.stopping:stop",
        (Option("run"), Option("more", repeated=True)),
        1,
        {"--abort": Option("abort", Takes.NOTHING), "--jobs": Option("jobs"), **_JSON},
    ),
}


def parsed(arguments: Sequence[str]) -> tuple[str, dict[str, object]] | None:
    """Return the place of the function and its arguments by name; None: the library must look."""
    if not arguments or (command := COMMANDS.get(arguments[0])) is None:
        return None
    given: dict[str, object] = {}
    by_position = list(command.by_position)
    words = list(arguments[1:])
    while words:
        word = words.pop(0)
        if word.startswith("-"):
            option = command.options.get(word)
        else:
            option = by_position[0] if by_position else None
            if option is not None and not option.repeated:
                del by_position[0]
            words.insert(0, word)
        if option is None or not _take(option, words, given):
            return None
    needed = command.by_position[: command.needed]
    return (command.target, given) if all(one.name in given for one in needed) else None


def _take(option: Option, words: list[str], given: dict[str, object]) -> bool:
    """Add the option's value to `given`; return whether there is one, and no doubt about it."""
    if option.name in given and not option.repeated:
        return False
    if option.takes is Takes.NOTHING:
        given[option.name] = True
        return True
    # A value that begins like an option, or is empty, has rules of its own in the library.
    if not words or not words[0] or words[0].startswith("-"):
        return False
    word = words.pop(0)
    if option.among and word not in option.among:
        return False
    if option.takes is Takes.NUMBER:
        if not (word.isascii() and word.isdecimal() and len(word) < 10) or word != str(int(word)):
            return False
        given[option.name] = int(word)
    elif option.repeated:
        earlier = given.get(option.name, ())
        assert isinstance(earlier, tuple)
        given[option.name] = (*earlier, word)
    else:
        given[option.name] = word
    return True


def function_at(target: str) -> Callable[..., object]:
    """Import the function of a command."""
    module, _, name = target.partition(":")
    found: Callable[..., object] = getattr(load(f"fairlead.cli.commands.{module}"), name)
    return found


def load(module: str) -> ModuleType:
    """Import a module of ours, and msgspec with it, as fast as it can be."""
    with _without("typing_extensions"):
        return importlib.import_module(module)


@contextmanager
def _without(*names: str) -> Iterator[None]:
    """Let imports of these modules fail, where they are not loaded yet. None in sys.modules does
    that (The import system, 5.3.1).

    msgspec takes the same names from `typing` where typing_extensions is missing: 8 of the 85 ms of
    CPU time of `fairlead ps` (`./dev bench command`).
    """
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
