"""The ways into a container: SSH keys on the node, and the socket of its runner."""
