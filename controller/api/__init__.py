"""The REST API under `/v1`: `app.make_app(service)` makes it, `app.ROUTES` lists it."""
