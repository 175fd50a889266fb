"""Voice activity: where speech starts and ends in a stream of audio."""
