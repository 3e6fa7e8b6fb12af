"""Finds the credentials for the cluster. It reads and loads nothing, because a driver listens first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from dranode.driver.core.api.errors import UsageError
from dranode.driver.machine.presence import is_file

# Where kubelet puts a pod's service account.
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Credentials(NamedTuple):
    """The place of the credentials.

    Attributes:
        kubeconfig: a kubeconfig file, or several as `KUBECONFIG` has them; empty for the service account of this pod.
        service_account: the folder with the pod's token and its certificate authority.
        context: the kubeconfig's context; empty for its current one.
    """

    kubeconfig: str = ""
    service_account: Path = SERVICE_ACCOUNT
    context: str = ""

    def check(self) -> None:
        """See whether there can be credentials at all.

        Raises:
            UsageError: there cannot.
        """
        if self.kubeconfig:
            if not any(map(_is_kubeconfig, self.kubeconfig.split(os.pathsep))):
                raise UsageError(f"there is no kubeconfig {self.kubeconfig}; name one with --kubeconfig")
        elif not os.environ.get("KUBERNETES_SERVICE_HOST"):
            raise UsageError(
                "this is no pod (KUBERNETES_SERVICE_HOST is not set); name a cluster with --kubeconfig, "
                "or a folder of claims with --store"
            )


def _is_kubeconfig(path: str) -> bool:
    try:
        return is_file(Path(path))
    except OSError as error:
        raise UsageError(
            f"the kubeconfig {path} cannot be looked for: {error.strerror}; run as somebody who may read it, or name "
            "another one with --kubeconfig"
        ) from error
