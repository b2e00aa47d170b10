"""Files of the user's machine: those that go with a run, and those that jobs leave.

`upload` sends code and files, without what `ignored` leaves behind; `ssh_keys` and `set_files` read
what goes along. `outputs` brings back what jobs wrote.
"""
