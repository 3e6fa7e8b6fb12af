"""The driver as a plug-in of the container runtime (NRI, the Node Resource Interface).

    socket <-> client (the thread) <-> session <- calls, ttrpc, mux     bytes to events and back; I/O in client alone
                    |
                enforcer <-> dranode.driver.pinning.enforcement            events to decisions
                    |
           inquiry, verifier                                            I/O: what decisions ask, what the kernel says

The seam to the node service is `dranode.driver.nri.inquiry.ClaimSource`: it publishes a `PinSnapshot` that never
changes, reads the ledger again on request, and asks kubelet's pod-resources API. It calls `NRIClient.notify` when the
snapshot has changed, `Enforcer.verify` from time to time, and reads `Enforcer.status` for metrics and health.
"""
