"""Docker as an `Engine`. The door is `engine.DockerEngine`."""
