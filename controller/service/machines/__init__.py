"""What admins ask for about machines: nodes with their GPUs, fleets, and gateways.

A node is added by its address (`nodes`), or announced before it boots (`registrations`, with the
`user_data` that it boots with). `use` is what runs occupy there; `health` asks its shim, and
`faults` lists what is broken.
"""
