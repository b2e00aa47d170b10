"""What runs on a node when it boots with our user-data; its Python is the node's own."""
