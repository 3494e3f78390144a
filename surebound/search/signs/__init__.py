"""Sub-problems by the signs of ReLU inputs, on the reduced network of one box (bounds/reduced/)."""
