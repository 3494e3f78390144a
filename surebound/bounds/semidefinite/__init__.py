"""The semidefinite bound of networks with one hidden layer (Raghunathan et al. 2018)."""
