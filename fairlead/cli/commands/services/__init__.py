"""Commands about services, and the gateways that offer them."""
