"""The nouns of docs/rules.md that users meet: statuses, reasons, needs, services; immutable."""
