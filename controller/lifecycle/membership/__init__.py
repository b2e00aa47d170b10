"""Membership says which jobs belong together. It reads a run and changes nothing.

`ranks` reads gangs: which attempts carry a rank, which are reserved, and whether the gang is whole.
`members` reads the replicas of a service that have several nodes.
"""
