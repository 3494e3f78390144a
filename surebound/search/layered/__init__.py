"""Sub-problems over the network's own layers: for queries whose rows are mixed anew at every step.

Verification of classifiers works on the reduced network (bounds/reduced/network.py), which is much cheaper.
"""
