"""One module holds the commands of one subject, however few.

It is imported only when one of its commands is used, so a command loads nothing that it does not
need. `command_list` names the modules.
"""
