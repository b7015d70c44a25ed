"""Which modules are mutated, and which tests are asked first."""

from __future__ import annotations

from collections.abc import Mapping

PARTS: Mapping[str, tuple[str, ...]] = {
    "driver": (
        "master.driver",
        "master.event_queue",
        "master.executor.executor",
        "master.executor.fencing",
    ),
    "leases": (
        "master.core.data.backup_leases",
        "master.core.data.lease_limits",
        "master.core.data.leasing",
        "master.core.data.ledger",
        "master.core.data.pieces",
        "master.core.data.revocation",
        "master.gateway.lease_polls",
    ),
    "reconciliation": (
        "master.core.data.lease_reconciliation",
        "master.core.data.rollback",
        "master.core.ps.update_booking",
        "master.core.updates",
    ),
    "takeover": (
        "master.core.image",
        "master.core.presence",
        "master.core.takeover",
        "master.journal.recovery",
        "master.journal.rules",
    ),
}
"""Modules below `elasticdl.`"""

TESTS = (
    *(
        f"tests/core/test_{name}.py"
        for name in (
            "awaited",
            "backup_leases",
            "dropped_messages",
            "executor",
            "exporting",
            "fencing",
            "goodput",
            "driver_archive",
            "journal_recovery",
            "journal_replay",
            "lease_polls",
            "lease_reasons",
            "lease_rules",
            "leases",
            "ledger_shards",
            "master_corners",
            "master_cuts",
            "master_failures",
            "master_late_losses",
            "master_messages",
            "master_processes",
            "master_promises",
            "master_rounds",
            "master_side_decisions",
            "paces",
            "resizing",
            "resumed_repeats",
            "scale_override",
            "shard_list",
            "shared_minibatches",
            "state_image",
            "steps",
            "stragglers",
            "takeover",
            "update_account",
        )
    ),
    "tests/contract/test_driver_calls.py",
    "tests/contract/test_driver_servers.py",
    "tests/contract/test_driver_takeover.py",
)
"""Files of tests that say most about these modules; simulated jobs are asked about the rest."""
