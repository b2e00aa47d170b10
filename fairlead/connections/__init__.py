"""Connections to a controller: its `requests`, which of its `addresses` is tried next, how one is
connected (`dialling`) and notices that its other end is gone (`keepalives`), how an action is asked
for twice (`order_keys`), the streams of followed logs (`websocket`), and what a `with` block closes
(`closing`)."""

READ_BYTES = 1 << 16
"""What is read at once, of a connection or a file. With 256 KiB, a log took twice the CPU time."""
