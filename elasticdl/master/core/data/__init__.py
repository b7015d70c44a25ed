"""The data ledger: shards, leases, and what becomes of a lost worker's leases."""
