"""`dranode serve`: the node driver."""

from __future__ import annotations

from typing import Any

import click

from dranode.driver.cli.daemon import serve
from dranode.driver.cli.machine_option import machine_option
from dranode.driver.cli.options import driver_options, serve_options, store_option


@click.command(short_help="The node driver: what the DaemonSet runs.")
@machine_option
@driver_options
@serve_options
@store_option
def command(**options: Any) -> None:
    """Serve kubelet's calls for the claims of this node's pods.

    \b
    Example:
      dranode serve --node-name worker --log-format json
      dranode serve --kubeconfig ~/.kube/config --kubelet-root state/kubelet --cdi-dir state/cdi
      dranode serve --store state/store --kubelet-root state/kubelet --cdi-dir state/cdi
    """
    serve(**options)
