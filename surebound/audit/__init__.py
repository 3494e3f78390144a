"""Look for a wrong answer: random networks, files and queries, every method and stage, and executions against them.

requirement: the ``onnx`` extra for the generators of files and queries
return:      ``Tally``: what was compared, and what was found
property:    repeats exactly: trial N of a generator is drawn from the seed and N alone

Networks are Python text that is run from a file, as a user's are: a find is a script already, and is made smaller by
leaving lines out (``text.py``). ``claims.py`` asks every method and stage, ``oracle.py`` looks for executions against
the claims.
"""

from surebound.audit.run import GENERATORS, audit
from surebound.audit.tally import Find, Tally

__all__ = ["GENERATORS", "Find", "Tally", "audit"]
