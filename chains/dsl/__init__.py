"""How a chain is written down: settings, chainlets, method signatures and the graph they make."""
