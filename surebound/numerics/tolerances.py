"""How far a solver or a traced program may be off. No float-sound proof rests on these."""

from __future__ import annotations

#: How far a traced program may be from its module on the check inputs, relative to the largest output.
TRACE_TOLERANCE = 1e-4

#: How far an LP or MIP solver may violate a constraint, or a binary be from 0 and 1: its proofs are not float-sound.
SOLVER_FEASIBILITY = 1e-7

#: A solver's incumbent above this is worth stopping for: smaller ones often are its tolerance, not a violation.
WITNESS_MARGIN = 1e-3
