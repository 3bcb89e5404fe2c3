"""Search among sets: an index on disk, exact or fast, on an engine that stores vectors."""
