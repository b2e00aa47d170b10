"""`schema`: the JSON Schema of a task's YAML, for editors."""

from __future__ import annotations

import msgspec

from controller.cli import output
from controller.configuration.json_schema import document


def schema() -> int:
    """Write the JSON Schema of a task's YAML, by which editors complete and check it."""
    output.emit_json(msgspec.json.format(msgspec.json.encode(document()), indent=2))
    return 0
