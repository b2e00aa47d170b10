"""EC2 of Amazon as a provider.

`cloud` is the provider; `instances` reads what EC2 says of images and machines, and writes what it
is told of them; `examination` asks for what the controller's file names; `calls` sends requests by
botocore, in threads; `errors` turns its refusals into those of the seam; `types` reads types of
machines with their prices, `spot_prices` those of spot machines.

Only a controller whose file names such a provider loads this package.
"""
