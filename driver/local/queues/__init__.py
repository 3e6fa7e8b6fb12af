"""Queues in front of the fleet, as Kueue has them: who is admitted, in which flavor, at whose expense."""
