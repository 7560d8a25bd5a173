"""One module per aggregation rule. Each registers itself."""
