"""One module for each subject; it is imported only when one of its commands is used."""
