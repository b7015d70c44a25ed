"""The worker: leases shards from the master, trains on them, and reports progress.

Threads of a worker in parameter-server mode, each at the end of one queue:

    keeper ──leases──▶ reader ──batches──▶ loader ──pulled batches──▶ loop (main) ──gradients──▶
    pusher ──▶ reporter
    long poll          read, order, feed   ids, pull                  compiled step
    push, ack   progress

Nothing computes under a lock, and no step waits for the master: a worker only needs a lease in time
and sends reports later.
"""
