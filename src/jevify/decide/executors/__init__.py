"""Three ways to run a request behind one interface: the independent oracle, forked caches, one packed pass."""
