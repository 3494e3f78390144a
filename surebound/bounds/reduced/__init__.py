"""A network over one box, reduced to its unstable ReLUs, and bounds of many sub-problems of it at once."""
