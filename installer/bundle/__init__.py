"""Packs a node's bundle; only this part of the installer needs a checkout, and no node has it."""
