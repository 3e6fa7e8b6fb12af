"""Claim templates for devices that belong together: of a NUMA node, of half a socket, or of a GPU with its share."""
