"""Copies of logs and of runs' lives for other tools, which search and draw them: never the store.

`sink` sends what it is given while its receiver takes it, and counts what it gives up. `log_copies`
and `traces` write the receivers' documents (Loki, OTLP/HTTP in JSON). `shipper` joins them and
hears of each turn and each stored frame.

The documents are a few dozen lines. The SDK of OpenTelemetry would bring threads, protobuf and an
API for spans of now, while these are of the past.
"""
