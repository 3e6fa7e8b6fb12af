"""The Container Device Interface: specs as values, names, versions, what a runtime would load, the folder of files."""
