"""The kubectl plug-in: reads a cluster with `tools.readers`, and judges what it read with `tools.diagnosis`."""
