"""The faults, by the room of the house that they are put into. Whoever adds a rule, a stage or a format adds some."""
