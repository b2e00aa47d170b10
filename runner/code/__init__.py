"""The user's code: received as blobs or fetched with git, then put in its place.

What arrives is hostile until proven otherwise: it may aim at root's files elsewhere, or be an
accident. Nothing is ever written through a link or without a limit.
"""
