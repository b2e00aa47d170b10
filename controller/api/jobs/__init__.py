"""The jobs of a run as REST: attempts, logs, outputs, ports, terminals and metrics.

One module holds one resource: its bodies, handlers and routes.
"""
