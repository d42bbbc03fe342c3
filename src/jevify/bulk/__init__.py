"""Many rows of a file through one engine: read, decided in groups, written down so that a killed run goes on."""
