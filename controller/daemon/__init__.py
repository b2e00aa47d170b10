"""The controller as a process: it opens what it needs, serves until it is stopped, and closes all.

Begin with `serving`. `boot` takes the lease, which `lease` keeps, and learns what is known.
`opening` joins the stores, nodes, gateways and providers; the module of each says what it needs of
`options`. `work` goes on while `listening` lets users and booted nodes in. A leader whose disk is
full hands over (`hand_over`), and `garbage` frees what a lead that is over has left. The working
parts are joined in `controller.assembly`.
"""
