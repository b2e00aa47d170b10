"""Stand-ins for real parts, one per Protocol. What misbehaves is named after what it does wrong."""
