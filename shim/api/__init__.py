"""The REST API on the unix socket; `app.make_app` makes it."""
