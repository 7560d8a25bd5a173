"""Images and labels: readers of sources, one table for all, cache, checks, splits, partitions."""
