"""Who may do what: users and their tokens, and the secrets and keys that they keep.

`users` holds the gate that every request passes, and `rights` says what a user may do.
`login_links` and `browser_grants` let a browser in, `service_keys` a program into one service.
"""
