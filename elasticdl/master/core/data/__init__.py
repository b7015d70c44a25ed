"""The data ledger: shards, leases, and the reconciliation of a lost worker's leases."""
