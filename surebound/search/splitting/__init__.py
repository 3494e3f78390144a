"""Search by splitting the input box, and the rule that chooses between that and splitting on the signs of ReLUs."""
