"""The REST API under `/v1`: `app.make_app(service)` makes it, `app.ROUTES` lists it.

One module holds one resource, however small: its bodies, handlers and routes. `app` alone imports
it. What users read is in `documents`, and `views` makes that of the controller's state.
"""
