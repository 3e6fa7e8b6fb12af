"""Which CPUs a request gets."""
