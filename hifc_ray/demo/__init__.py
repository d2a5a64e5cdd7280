"""The main job: conversations over Ray whose KV overflows the pool into host memory and flash, and comes back."""
