"""Training with parameter servers: workers lease shards, servers have the weights."""
