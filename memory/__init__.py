"""The memory driver: ordinary memory and huge pages of NUMA nodes as devices."""
