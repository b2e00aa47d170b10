"""What may happen to a run, decided by functions without I/O, clock or randomness of their own.

`decide.decide(state, reports, now, new_id)` is the door: it takes the whole state of one run and
all that was reported since the last turn, and gives the next state, its events and next deadline.
`effects.wanted(state, now)` says what the outside should be made to do *given a committed state*.
"""
