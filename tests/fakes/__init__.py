"""Stand-ins with behavior: drivers, machines, peers and documents that tests are made of."""
