"""The sanity suite: kubelet and API server in front of any DRA driver, with checks of what it has to do."""
