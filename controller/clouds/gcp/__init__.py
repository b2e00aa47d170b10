"""Compute Engine of Google as a provider.

`cloud` is the provider; `calls` makes requests of its REST API with tokens of google-auth; `errors`
turns its refusals into those of the seam; `prices` reads the price list of Cloud Billing.

Only a controller whose file names such a provider loads this package.
"""
