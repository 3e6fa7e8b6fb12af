"""Machines: the host, a captured one, a made-up one; whatever holds `sys/`, read through one small interface."""
