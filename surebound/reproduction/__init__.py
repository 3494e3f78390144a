"""What stands behind the paper's tables and figures: runs, verifications and computations, done once and reused.

How an artefact is described and drawn stands in `surebound.reproduction.artefacts`, one small file each.
"""

from __future__ import annotations
