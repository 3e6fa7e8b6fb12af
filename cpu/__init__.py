"""The CPU driver, `dra.cpu`."""
