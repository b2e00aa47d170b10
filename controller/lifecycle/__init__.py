"""This package decides what happens to a run. It has no I/O, clock or randomness of its own.

`decide.decide(state, reports, now, new_id)` takes the state of one run and the reports since the
last turn. It gives the next state, its events and the next deadline. `effects.wanted(state,
attempt, now)` says what the outside must do for a *committed* state.

The nouns are in `model`, and what can be reported in `reports`; a turn works on a `draft`. `intake`
applies the reports. Then `attempts` judges each attempt, `runs` the run as a whole, and `gangs` and
`services` what their jobs do together; `membership` says which jobs those are.
"""
