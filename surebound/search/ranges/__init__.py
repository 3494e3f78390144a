"""Sub-problems by parts of the ranges of values inside the network, whatever operator reads them."""
