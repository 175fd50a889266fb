"""Language models: from messages to streamed text, typed results and choices."""
