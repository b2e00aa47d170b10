"""What all resources share of HTTP: the type of a route, queries and bodies, pages and errors.

`routes` is where to begin. `streams` are requests that stay open, `origins` the foreign web pages
that may use the API, and `openapi` makes the document of all routes.
"""
