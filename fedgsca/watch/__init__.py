"""`fedgsca watch`: a local page that shows runs while they happen, from the files they write."""
