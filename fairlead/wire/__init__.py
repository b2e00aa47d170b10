"""The messages between our programs: types, errors, and how sizes and keys are written.

Every program loads some of it, an agent too, so it needs msgspec alone.
"""
