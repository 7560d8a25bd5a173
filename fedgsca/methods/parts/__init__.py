"""Parts that several methods share: plain functions, each tested against numbers done by hand."""
