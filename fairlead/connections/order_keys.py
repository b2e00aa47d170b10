"""Which actions on a run may be asked for twice."""

import os

ORDER_KEY = "Fairlead-Order-Key"
"""A header of such a request. Each order has another key; a repeated one has the same."""
MAX_ORDER_KEY = 64

_RUNS = "/v1/runs/"
_DIGITS_OF_ID = 16
_SETTINGS = frozenset(("stop", "complete", "suspend", "resume", "scale"))


def new_order_key() -> str:
    return os.urandom(8).hex()


def is_setting(path: str) -> bool:
    """Return whether a request to this path sets how a run goes on: the second one changes nothing
    more. The run is named by its id, because by the second time a name may be another run's."""
    # Not a regular expression: their module takes a short command 3 ms to load.
    id, _, action = path.removeprefix(_RUNS).partition("/")
    is_id = len(id) == _DIGITS_OF_ID and not id.strip("0123456789abcdef")
    return path.startswith(_RUNS) and is_id and action in _SETTINGS
