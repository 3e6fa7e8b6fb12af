"""A driver that does everything right, and one for each way in which a driver can go wrong."""
