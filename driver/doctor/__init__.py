"""Readers of the facts that `dranode doctor` and `dranode explain` judge: one module for each peer that is asked."""
