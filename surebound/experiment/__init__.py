"""Experiments: configurations, presets, run directories, and what commands work on."""
