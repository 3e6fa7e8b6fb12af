"""Answers for people about a cluster, from wherever they are: `dranode explain` and the kubectl plug-in.

This room is on top: it reads through `readers`, judges with `tools.diagnosis`, and asks the simulator what
kube-scheduler would say.
"""
