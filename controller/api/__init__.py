"""The REST API under `/v1`: `app.make_app(service)` is the door, `table.ROUTES` the contents."""
