"""Compute Engine of Google as a provider.

`cloud` is the provider; `order` makes the request for a machine; `answers` has the documents that
come back; `calls` sends requests to its REST API with tokens of google-auth; `errors` turns its
refusals into those of the seam; `prices` reads the price list of Cloud Billing; `types` reads types
of machines.

Only a controller whose file names such a provider loads this package.
"""
