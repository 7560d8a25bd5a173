"""From a configuration to sites with data, and the run folder with its records."""
