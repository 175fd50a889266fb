"""Text to speech, clause by clause."""
