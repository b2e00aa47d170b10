"""The REST API under `/v1`: `app.make_app(service)` makes it, `table.ROUTES` lists it."""
