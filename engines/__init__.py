"""The engines: models behind plain interfaces. Only chainlet.py and commands.py in a room know Chains."""
