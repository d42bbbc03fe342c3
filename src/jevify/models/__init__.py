"""Networks and how their weights arrive: the catalog, fetching and conversion, the language model."""
