"""One module per kind of data source."""
