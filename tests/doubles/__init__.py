"""Stand-ins for real parts, one per Protocol. A double that misbehaves is named after its fault."""
