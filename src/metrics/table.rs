//! Names, units and meanings of all metrics. A test compares them with `manual/metrics.md`.

#[derive(Debug)]
#[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "they are not read"))]
pub(crate) struct Metric {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    pub(super) help: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Unit {
    Count,
    Seconds,
    Ratio,
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    metric(name, Unit::Count, help)
}

const fn metric(name: &'static str, unit: Unit, help: &'static str) -> Metric {
    Metric { name, unit, help }
}

pub(super) const ACQUIRES: Metric =
    counter("palisade_lock_acquires_total", "Calls that try to acquire a lock, by outcome");
pub(super) const ACQUIRE_WAIT: Metric = metric(
    "palisade_lock_wait_seconds",
    Unit::Seconds,
    "From the call until the lock was acquired",
);
pub(super) const LOCKS_HELD: Metric =
    metric("palisade_locks_held", Unit::Count, "Locks that are held now");
pub(super) const DEGRADED: Metric = counter(
    "palisade_lock_degraded_total",
    "Guards that were returned without a lock, because no majority answered, by policy",
);
pub(super) const LOCKS_DEGRADED: Metric = metric(
    "palisade_locks_degraded",
    Unit::Count,
    "Guards without a lock whose work runs now, because no majority answered",
);
pub(super) const LEASES_LOST: Metric = counter(
    "palisade_leases_lost_total",
    "Leases (locks, leaderships, claims) that ended before their holder was done",
);
pub(super) const LOST_MARGIN: Metric = metric(
    "palisade_lease_lost_margin_seconds",
    Unit::Seconds,
    "What was left of the validity when a lease was reported lost",
);
pub(super) const RENEWALS: Metric =
    counter("palisade_lease_renewals_total", "Renewals and extensions of leases, by outcome");
pub(super) const RENEWAL_MARGIN: Metric = metric(
    "palisade_lease_renewal_margin_seconds",
    Unit::Seconds,
    "What was left of the validity when a renewal was decided",
);
pub(super) const RENEWAL_RATIO: Metric =
    metric("palisade_lease_renewal_margin_ratio", Unit::Ratio, "The same as a part of the ttl");
pub(super) const RENEWAL: Metric = metric(
    "palisade_lease_renewal_seconds",
    Unit::Seconds,
    "From the send of a renewal until it was decided",
);
pub(super) const CLAIMS: Metric = counter(
    "palisade_idempotency_claims_total",
    "Claims of idempotency keys asked of the nodes, by outcome",
);
pub(super) const CLAIMS_HELD: Metric =
    metric("palisade_claims_held", Unit::Count, "Idempotency keys whose handler or probe runs now");
pub(super) const LEADING: Metric =
    metric("palisade_election_leading", Unit::Count, "1 while this process leads, else 0");
pub(super) const TERMS: Metric =
    counter("palisade_election_terms_total", "Terms that this process began");
pub(super) const LEADERLESS: Metric = metric(
    "palisade_election_leaderless_seconds",
    Unit::Seconds,
    "For how long there has been no leader, as the observer of this process saw it last",
);
pub(super) const VACANCY: Metric = metric(
    "palisade_election_vacancy_seconds",
    Unit::Seconds,
    "How long there was no leader, for each time that an observer saw it begin and end",
);
pub(crate) const READY: Metric = metric(
    "palisade_ready",
    Unit::Count,
    "1 while a majority of the nodes votes, else 0; NaN before the first answer",
);

pub(crate) struct Node {
    pub(crate) batches: Metric,
    pub(crate) request: Metric,
    pub(crate) ops: Metric,
    pub(crate) grants: Metric,
    pub(crate) refusals: Metric,
    pub(crate) faults: Metric,
    pub(crate) histories: Metric,
    pub(crate) quarantines: Metric,
    pub(crate) keys_forgotten: Metric,
    pub(crate) reassertions: Metric,
    pub(crate) switches: Metric,
    pub(crate) barriers: Metric,
    pub(crate) barriers_failed: Metric,
    pub(crate) logins_failed: Metric,
    pub(crate) voting: Metric,
    pub(crate) quarantine_ends: Metric,
    pub(crate) losses: Metric,
    pub(crate) loss: Metric,
}

pub(crate) const NODE: Node = Node {
    batches: counter("palisade_node_batches_total", "Batches that were sent to the node"),
    request: metric(
        "palisade_node_request_seconds",
        Unit::Seconds,
        "From the send of a batch until its answer or fault",
    ),
    ops: counter("palisade_node_ops_total", "Requests in those batches"),
    grants: counter("palisade_node_grants_total", "Acquires and claims that the node said yes to"),
    refusals: counter("palisade_node_refusals_total", "Answers that say no by the rules"),
    faults: counter("palisade_node_faults_total", "Requests without an answer that counts"),
    histories: counter("palisade_node_histories_total", "Data histories that the node showed"),
    quarantines: counter("palisade_node_quarantines_total", "Quarantines that were met"),
    keys_forgotten: counter(
        "palisade_node_keys_forgotten_total",
        "Claims granted by a node that may have forgotten an earlier one",
    ),
    reassertions: counter(
        "palisade_node_reassertions_total",
        "Leases that were put back into a node in quarantine",
    ),
    switches: counter(
        "palisade_node_failovers_total",
        "How often another server answered than before",
    ),
    barriers: counter(
        "palisade_node_replica_waits_total",
        "Waits for replicas, for a durability level",
    ),
    barriers_failed: counter(
        "palisade_node_replica_waits_failed_total",
        "Those that too few replicas confirmed in time",
    ),
    logins_failed: counter(
        "palisade_node_logins_failed_total",
        "Failures of the provider of credentials, and answers of it that a server refused",
    ),
    voting: metric(
        "palisade_node_voting",
        Unit::Count,
        "1 while the node answers and grants, else 0; NaN before the first answer",
    ),
    quarantine_ends: metric(
        "palisade_node_quarantine_ends_seconds",
        Unit::Seconds,
        "When the node's quarantine ends, since 1970; 0 if there was none",
    ),
    losses: counter(
        "palisade_node_losses_total",
        "Losses of data that the node proved or admitted",
    ),
    loss: metric(
        "palisade_node_loss_seconds",
        Unit::Seconds,
        "The node's latest loss within 24 h: it lost at most so much of writes; 0: none, +Inf: \
         nothing proves a limit",
    ),
};

pub(crate) struct Idempotency {
    pub(crate) calls: Metric,
    pub(crate) reruns: Metric,
    pub(crate) forgotten_runs: Metric,
    pub(crate) held: Metric,
    pub(crate) unknown_until: Metric,
}

pub(crate) const IDEMPOTENCY: Idempotency = Idempotency {
    calls: counter("palisade_idempotency_calls_total", "Calls under idempotency keys, by outcome"),
    reruns: counter(
        "palisade_idempotency_reruns_total",
        "Handlers started although an earlier attempt had left no result",
    ),
    forgotten_runs: counter(
        "palisade_idempotency_forgotten_runs_total",
        "Handlers started although too few nodes knew whether the key was used before",
    ),
    held: metric(
        "palisade_consumer_held",
        Unit::Count,
        "Messages held now, 100 000 at most: too few nodes know whether they were handled, and it \
         is undecided",
    ),
    unknown_until: metric(
        "palisade_idempotency_keys_unknown_until_seconds",
        Unit::Seconds,
        "Until when keys without a birth count as forgotten, since 1970; 0: they never did",
    ),
};
