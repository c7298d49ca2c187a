"""From two bare 8xH100 nodes to a measured, gated, observable vLLM endpoint."""

__version__ = "0.1.0"
