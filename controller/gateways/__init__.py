"""The controller's side of gateways: what each shall serve, and what it tells.

`snapshots` makes what a gateway serves from the committed routes. `link` reaches its agent through
SSH, `session` keeps one gateway connected, and `manager` holds the sessions.
"""
