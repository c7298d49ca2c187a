"""Pure arithmetic over `coderack.spec`: what a profile means on a given node."""
