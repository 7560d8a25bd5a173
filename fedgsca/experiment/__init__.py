"""From a configuration to sites with data, and the run folder that an experiment leaves on disk."""
