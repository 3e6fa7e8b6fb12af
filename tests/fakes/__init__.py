"""Fakes with behavior: drivers, machines, peers and documents for tests."""
