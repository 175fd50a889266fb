"""How values and calls cross a process boundary."""
