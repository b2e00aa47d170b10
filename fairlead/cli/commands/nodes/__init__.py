"""Commands about nodes and fleets."""
