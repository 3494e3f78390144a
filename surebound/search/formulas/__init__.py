"""Can a formula about a network hold? One engine for queries that others wrote and for specifications in Python."""
