"""Users with their tokens, stored secrets and the keys of services as REST.

One module holds one resource: its bodies, handlers and routes.
"""
