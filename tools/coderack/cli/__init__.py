"""The `coderack` command, one module per verb. The only room that prints."""
