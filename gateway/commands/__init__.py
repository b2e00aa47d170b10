"""The commands on a gateway's machine."""
