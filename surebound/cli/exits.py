"""How commands end, as shells see it; docs/command-line.md has the same table for people, and a test compares them."""

from __future__ import annotations

#: The command did its work, but something in it needs a look: an error of an image, or a proof that an attack broke.
EXIT_ERRORS = 1
#: What was given is wrong; nothing was done.
EXIT_INPUT = 2
#: A training or a reproduction was stopped; it can go on.
EXIT_STOPPED = 3
#: Less is proved than ``--fail-under`` asks for.
EXIT_UNDER = 4
#: Ctrl-C.
EXIT_INTERRUPTED = 130

CODES = (0, EXIT_ERRORS, EXIT_INPUT, EXIT_STOPPED, EXIT_UNDER, EXIT_INTERRUPTED)
