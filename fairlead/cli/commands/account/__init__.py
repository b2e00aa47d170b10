"""Commands about a login: controllers, users, tokens and secrets."""
