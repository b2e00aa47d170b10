"""The pipelines carry runs through their lives.

`run_pipeline` takes the turns, and `turn` is one in progress. It keeps the runs (`live_state`) and
the nodes (`inventory`), and knows who waits for what (`waiting`). `effects` makes the outside match
what was committed, with the `performers`, one for each kind of effect. `to_node` and `from_node`
translate. `renting` decides about machines.
"""
