"""The user's code: taken from the node's side as blobs or fetched with git, then put in its place.

What arrives is hostile until it is proven otherwise: it may be root's doing in another place, or an
accident. Nothing is ever written through a link, and nothing without a limit.
"""
