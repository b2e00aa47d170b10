"""Files of tasks that need nothing of their author's machine.

Their text goes to the controller as it is, so that `apply` loads no library of YAML before its
request. What such a file means is what its author's `apply` would have made of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.configuration.errors import ConfigurationError
from fairlead.configuration.text.dstack import is_of_dstack
from fairlead.configuration.text.environment import with_environment
from fairlead.configuration.text.source import read

MAX_CHARACTERS = 16 << 10
"""A controller serves others meanwhile: PyYAML takes some ms for each KiB."""
MAX_CONTENT = 1 << 20
"""A client may send more, in its own memory: aliases make much of a short text."""
_OF_THE_AUTHOR = frozenset(("repos", "files"))
"""Fields whose content is uploaded first."""


class NotPlain(Exception):
    """The file needs something of its author's machine; the message says what, and why."""


def plain(text: str) -> dict[str, object]:
    """Return the configuration that a client sends for this file, which nothing has checked.

    Raises NotPlain, SourceError.
    """
    if len(text) > MAX_CHARACTERS:
        raise NotPlain(f"it has more than {MAX_CHARACTERS} characters")
    data = read(text.encode(), name="source").data
    if not isinstance(data, dict) or not is_plain_task(data):
        raise NotPlain("it is not a task in Fairlead's own fields without repos and files")
    sweep = data.get("sweep")
    if isinstance(sweep, dict) and "file" in sweep:
        raise NotPlain("its sweep has a file")
    try:
        filled = with_environment(data, {}, {})
    except ConfigurationError as error:
        raise NotPlain(f"{error.field} is a variable of its author's environment") from None
    try:
        content = msgspec.json.encode(filled)
    except UnicodeEncodeError:
        raise NotPlain("it has half of a character") from None
    if len(content) > MAX_CONTENT:
        raise NotPlain(f"its content has more than {MAX_CONTENT} bytes")
    # As a client's JSON says it: there, infinity is null.
    sent: dict[str, object] = msgspec.json.decode(content)
    return sent


def is_plain_task(configuration: Mapping[str, object]) -> bool:
    """Return whether it is a task of which nothing is uploaded, and nothing is told of a
    translation."""
    if configuration.get("type") != "task":
        return False
    return _OF_THE_AUTHOR.isdisjoint(configuration) and not is_of_dstack(configuration)
