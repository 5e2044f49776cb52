"""What a pool with shared state costs and stands: real routers, a real Redis, sidecars real and simulated."""
