"""`crisp demo`: a small model learns a generated scene while you watch."""
