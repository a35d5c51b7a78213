"""Text of questions: normal form, shingles, near-same pairs."""
