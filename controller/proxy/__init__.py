"""The controller's side of `common.proxy`: what it serves, and whether replicas are ready.

`registered` joins the proxy to routes, statistics and tokens; `probes` asks replicas.
"""
