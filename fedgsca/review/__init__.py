"""The review page: a small local web server on which a person looks at suspect labels and decides."""
