"""A driver that does everything right, and one for each mistake that a driver can make."""
