"""Events in the memory of several nodes, without a database: delivered on every side of a network split."""
