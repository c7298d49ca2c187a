"""Whether the engines of this node really answer, and the coupled restart of a fused group."""
