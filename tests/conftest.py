"""For all tests: an example takes as long as the machine takes; no test fails on a clock."""

from hypothesis import settings

settings.register_profile("dranode", deadline=None)
settings.load_profile("dranode")
