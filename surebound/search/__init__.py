"""Decide a question: cascade of stages, branch and bound, linear and mixed-integer programs."""
