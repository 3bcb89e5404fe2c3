"""One module per engine; the table of them is in `maxmatch.search.engine`."""
