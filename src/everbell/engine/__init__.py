"""The life of an event on one node: taken in, kept, loaded, rung, delivered, finished."""
