"""Nodes, fleets and gateways as REST, and the port where a new node joins.

One module holds one resource: its bodies, handlers and routes.
"""
