"""`python -m surebound`, so that launchers such as torchrun can start the command line."""

from __future__ import annotations

from surebound.cli import main

if __name__ == "__main__":
    main()
