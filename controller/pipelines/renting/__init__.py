"""Decisions about machines, in the turns of runs.

`pipeline` joins them to a turn. `rentals` keeps what they need from turn to turn: the `records` of
machines, the market as providers tell it, and the `last_demand`. `machine_turn` is one turn of
them, in which `standing` says what decides about a machine besides its record.
"""
