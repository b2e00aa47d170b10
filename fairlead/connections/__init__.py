"""Connections to a controller: which of its `addresses` is tried next, how a client notices that
the other end is gone (`keepalives`), and what a `with` block closes (`closing`)."""
