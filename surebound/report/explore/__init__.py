"""The explorer: one page to look at every image of a verification, served here or written as a file."""
