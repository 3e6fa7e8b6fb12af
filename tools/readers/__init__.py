"""Reads the facts that `dranode doctor` and `dranode explain` judge, with one module for each peer."""
