"""The state that outlives the shim: records on disk (`records`), which controller may command it
(`fencing`) and what happened (`events`).
"""
