"""The REST API on the unix socket. The door is `app.make_app`."""
