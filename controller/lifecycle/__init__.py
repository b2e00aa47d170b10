"""What may happen to a run, decided by functions without I/O, clock or randomness of their own.

`turn.decide(state, reports, now, new_id)` is the door: it takes one run's whole state and all that
was reported since the last turn, and gives the next state, its history events and next deadline.
`effects.wanted(state, now)` says what the outside should be made to do *given a committed state*.
"""
