"""What Fairlead costs, measured through the real parts: `./dev bench`, or `python -m bench`."""
