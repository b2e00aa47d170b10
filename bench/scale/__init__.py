"""One controller as a real process, thousands of nodes that only speak the protocol."""
