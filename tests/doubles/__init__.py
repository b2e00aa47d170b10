"""Stand-ins for real parts, one per Protocol, each with a name for how it misbehaves."""
