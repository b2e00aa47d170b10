"""Copies of logs and of runs' lives for other tools, which search and draw them: never the store.

`shipper` hears of each turn and each stored frame. `at_least_once` cuts logs into lines and sends
each at least once; `positions` keeps how far it came. `sink` sends what it is given while its
receiver takes it, and counts what that refuses. `log_documents` and `traces` write the
receivers' documents (Loki, OTLP/HTTP in JSON).

The documents are a few dozen lines. The SDK of OpenTelemetry would bring threads, protobuf and an
API for spans of now, while these are of the past.
"""
