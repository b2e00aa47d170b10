"""Docker as an `Engine`; `engine.DockerEngine` is the class."""
