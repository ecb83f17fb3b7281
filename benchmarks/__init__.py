"""What is timed; each script says how it is called."""
