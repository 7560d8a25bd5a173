"""A run: sites with data, the round loop, filters of updates, engines, run folder, records."""
