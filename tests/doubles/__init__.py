"""Stand-ins for real parts: one per Protocol, and each misbehaving one named after what it does wrong."""
