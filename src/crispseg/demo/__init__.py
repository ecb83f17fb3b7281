"""`crisp demo`: a shipped model segments a real scene that it was not trained on, and is scored against the truth."""
