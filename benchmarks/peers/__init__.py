"""Other ways to make the same hop, each behind the same few methods, so that one loop measures them all."""
