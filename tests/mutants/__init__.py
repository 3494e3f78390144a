"""Small faults, each with the tests that should notice it: `make mutants`."""
