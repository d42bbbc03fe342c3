"""Many requests in one call: requests a second."""
