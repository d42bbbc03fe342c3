"""The `jevify` command: what to type, what is printed, and the exit codes."""
