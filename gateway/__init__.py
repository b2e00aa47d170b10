"""The gateway agent: it carries requests from the internet to replicas, on a machine of its own."""
