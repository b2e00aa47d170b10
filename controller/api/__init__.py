"""The REST API under `/v1`: `app.make_app(service)` makes it, `app.ROUTES` lists it.

The rooms are those of `controller.service`: `runs`, `jobs`, `machines` and `accounts`, with one
module for each resource. `http` is what they share. What users read is in `documents`, and `views`
makes it of the controller's state.
"""
