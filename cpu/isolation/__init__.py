"""Isolation beyond `cpuset`: keeps interrupts, kernel work and host services off claims' CPUs, and makes partitions."""
