"""The review page: a local web server on which people review suspect labels."""
