"""Ready-made claims for devices that belong together: those of a NUMA node, half a socket, a GPU with its share."""
