"""Machines (the host, captured ones and synthetic ones): trees with a `sys/` folder, read through one interface."""
