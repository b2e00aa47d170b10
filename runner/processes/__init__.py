"""Processes of the container: as which user (`identity`), with which environment and folder for
secrets (`scratch`), from which command (`launch`); `spawn` starts them and waits for them.

The job, the helpers that fetch code and the sessions of SSH are started by these modules.
"""
