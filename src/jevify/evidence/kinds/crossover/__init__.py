"""Where shared tree attention wins and where it loses against what it replaces."""
