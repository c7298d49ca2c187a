"""Pure data: what a fleet is and what a serving profile asks for. No I/O."""
