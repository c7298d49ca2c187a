"""The coupled restart: the nodes of a fused group start and stop as one."""
