"""The paper's experiments as comparisons, and the numbers that it prints."""
