"""Where the GPU time of a decision goes, kernel by kernel."""
