"""Building blocks that several methods share: schedules, clustering, graphs, mixup, local intrinsic dimension."""
