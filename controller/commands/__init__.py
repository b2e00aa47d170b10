"""The commands of operators, which come with the daemons and not with the client."""
