"""Encodings of operators as rows of a mixed-integer program, shared by the families."""
