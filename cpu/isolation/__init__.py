"""Isolation beyond a CPU set: interrupts, work queues, services and scheduler partitions that a claim keeps away."""
