"""A model's weights on a node: fetched by revision, verified, switched to as a whole."""
