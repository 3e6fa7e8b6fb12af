"""Stand-ins with behaviour: drivers, machines, peers and documents that tests are made of."""
