"""Linear relaxations: lines, planes and choices between which an operator lies, shared by the families."""
