"""Each fused kernel alone, with a cold cache."""
