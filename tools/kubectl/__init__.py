"""The kubectl plug-in: reads a cluster with `tools.readers`, and judges what it read with `tools.diagnosis`."""

import signal


def run_plugin() -> None:
    """Run the plug-in. Ctrl-C while its modules are loaded ends it as it ends a program in C, without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dranode.tools.kubectl import plugin  # this takes long enough for Ctrl-C

    signal.signal(signal.SIGINT, handler)
    plugin.run_plugin()
