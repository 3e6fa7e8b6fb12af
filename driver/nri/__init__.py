"""The driver as a plug-in of the container runtime (NRI, the Node Resource Interface).

    socket <-> client (the thread) <-> session <- ttrpc             bytes to events and back; I/O in client alone
                    |
      unsolicited, enforcer <-> dranode.driver.pinning.enforcement  events to decisions
                    |
           state, inquiry, verifier                                 what was decided; I/O: what decisions ask, and what
                                                                    the kernel says

`inquiry.ClaimSource` is what this package needs from the rest of the driver: an immutable `PinSnapshot`, a way to read
the ledger again, and kubelet's pod-resources API. The driver calls `NRIClient.notify` when the snapshot has changed and
`Enforcer.verify` from time to time, and reads `Enforcer.status` for metrics and health.
"""
