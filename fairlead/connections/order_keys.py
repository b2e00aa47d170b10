"""Which actions on a run may be asked for twice."""

import os

ORDER_KEY = "Fairlead-Order-Key"
"""A header of such a request. Each order has another key; a repeated one has the same."""
MAX_ORDER_KEY = 64

SETTING_PATH = r"/v1/runs/[0-9a-f]{16}/(stop|complete|suspend|resume|scale)"
"""Of actions that set how a run goes on: the second one changes nothing more. The run is named by
its id, because by the second time a name may be another run's."""


def new_order_key() -> str:
    return os.urandom(8).hex()
