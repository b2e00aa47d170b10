"""One controller as a real process, and thousands of nodes that only speak the protocol."""
