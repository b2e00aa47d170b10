"""Makes a machine a Fairlead node, from a bundle and without a network.

`./dev bundle` (`installer/bundle`) packs the agents, their interpreter, the containers' runtime
and the system's files into a folder. Its `install` runs `installer.main` with the interpreter
next to it: `steps` says how each thing on the node should be, compares, changes what differs and
takes it away again; `plan` lists the steps in their order; `system` runs programs.
"""
