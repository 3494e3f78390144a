"""Side by side with the complete verifiers that PyPI offers: the same files, the same thread, every answer checked."""
