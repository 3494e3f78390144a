"""Random projections of the dual bound (Wong et al. 2018): estimates for training, never a proof."""
