"""Speech to text, one transcript per speech segment."""
