"""Programs that run on a node when it boots with our user-data; they use the node's own Python."""
