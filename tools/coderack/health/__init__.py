"""Health of GPU nodes: probes give readings, pure rules turn them into findings, reports show them. See README.md."""
