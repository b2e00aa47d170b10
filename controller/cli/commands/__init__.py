"""One module per subject; each is imported only when one of its commands is used."""
