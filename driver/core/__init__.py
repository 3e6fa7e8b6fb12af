"""A node driver's decisions: frozen values in, frozen values out. Nothing here touches a file, a socket or a clock."""
