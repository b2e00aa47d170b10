"""This package decides what happens to a run. It has no I/O, clock or randomness of its own.

`decide.decide(state, reports, now, new_id)` takes the state of one run and the reports since the
last turn. It gives the next state, its events and the next deadline. `effects.wanted(state,
attempt, now)` says what the outside must do for a *committed* state.
"""
