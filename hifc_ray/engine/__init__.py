"""The inference engine: finds and loads a model, runs it over the block pool, and keeps its blocks in the tiers."""
