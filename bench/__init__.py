"""The cost of Fairlead, measured through the real parts: `./dev bench`, or `python -m bench`."""
