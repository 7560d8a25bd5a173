"""One module per kind of data source. Each registers its reader in `fedgsca.data.reader.READERS`.

Modules without a reader hold what two readers share (published, xlsx) or the facts of a data set.
"""
