"""Where calls are kept: a SQLite file with every span, turn and recording, and percentiles per minute."""
