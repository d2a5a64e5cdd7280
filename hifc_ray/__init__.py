"""hifc_ray: a Ray-native, three-tier KV cache for LLM inference. ARCHITECTURE.md is the map."""

__version__ = "0.1.0"
