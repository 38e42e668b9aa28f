# make demo            the main job: orders booked once, whatever crashes, on nodes in memory
# make demo-sentinel   the same against real Sentinel-watched groups, with a failover (Linux)
# make demo-rabbitmq   real invoices through RabbitMQ while consumers, broker and Redis are killed
# make demo-streams    the same through Redis Streams
# make demo-nats       the same through NATS JetStream
# make demo-kafka      the same through the mock cluster of Kafka's client library
# make test            all tests of the library and the program, those with real servers (Redis,
#                      Prometheus) included
# make test-faults     the simulator finds every bug that is put back; servers that lie, stall and
#                      flood; faults on real processes (as root with netns, else skipped); the nodes'
#                      tests on a current Redis and a current Valkey, too, and lock clients of other
#                      libraries on our servers (from PyPI and npm; skipped without pip or npm)
# make test-adapters   the packages in adapters/, on the real brokers and databases (Debian)
# make test-conf       the scripts in sentinel-conf, on real groups (Linux, a minute)
# make nemesis         faults on real processes, judged from outside (Linux, root): SECONDS=600 SEED=7
# make demo-cron      ticks of one second on three processes while the leader is killed, frozen, cut
#                      off or resigned every 20 s, on real Sentinel groups (Linux, root): SECONDS=600
# make demo-locks     every kind of lock on three real servers, which are frozen, restarted and killed
#                      while eight clients work and are killed, judged from outside: SECONDS=60
# make failover-table  what each fault does to one Sentinel group's locks, a row each (Linux, root):
#                      ARGS=--json, ARGS=--plain for plain writes under each setting, too
# make ordinary        what a start, a restart, a crash and a planned handover cost each ordinary
#                      deployment, on real servers: ARGS=--json, ARGS='--only "one group:"'
# make console         a live view in the browser of a demo deployment: orders, locks, an election, a
#                      cron job; of yours: ARGS='--node redis://10.0.0.1'
# make test-console    the tests of the console, on real servers, and its pages in a real browser; the
#                      last line is what they measured, as JSON
# make console-pictures  the pictures of the console's pages in docs/console
# make doctor          is a deployment right?  ARGS='--node sentinel://s1,s2,s3/orders'
# make bench           this library beside another one, in ratios: ARGS='--locks --json' for each
#                      kind of lock beside the mutex
# make bench-idempotency  what an idempotency key costs: round trips, batches, bytes
# make soak            seeds of the simulator: SEEDS=100000; one again: ARGS='--reproduce SEED'
# make mutants         which small changes of the code the quick tests do not notice: a hundred of
#                      some thousands, drawn by SEED=7, or a part of them all, SHARD=3/40
# make fuzz            everything that is parsed, with garbage: CASES=100000, and ten times as many for
#                      the reader that every byte of a server goes through
# make minimal         builds with the lowest versions of the dependencies (skipped offline)
# make lint            format, clippy, rustdoc, lowest versions, licences and advisories
# make package         packs what is published, and builds each from its own pack
# make doc             the manual, in target/doc
#
# ARGS goes to the example, the tests or the bench:  make test ARGS='--test tidy'

CARGO ?= cargo
ARGS ?=
SEEDS ?= 20000
CASES ?= 100000
SECONDS ?= 60
SEED ?=
SHARD ?=
# Most tests wait for servers more than they compute.
export RUST_TEST_THREADS ?= $(shell n=$$(nproc 2>/dev/null || echo 1); echo $$((n > 8 ? n : 8)))
# A toolchain just installed by rustup is not yet on every shell's path.
export PATH := $(PATH):$(HOME)/.cargo/bin

# Packages with their own dependencies, and tests on servers of their own.
CONSOLE = palisade-console
CONSOLE_TMP = $${CARGO_TARGET_DIR:-target}/tmp
FIGURES = more first browser attacks
BROKERS = palisade-kafka palisade-lapin palisade-nats palisade-streams
ADAPTERS = $(BROKERS) palisade-sqlx palisade-tower broker-demo
# What is packed.
PUBLISHED = palisade palisade-ops palisade-console palisade-cli palisade-testing $(ADAPTERS:broker-demo=)
# Packages that only test, for minutes.
FAULTS = hostile nemesis sim

.PHONY: help console console-pictures demo demo-cron demo-sentinel demo-rabbitmq demo-streams demo-nats demo-kafka demo-locks test test-console test-faults test-adapters doctor test-conf nemesis failover-table ordinary bench bench-idempotency soak mutants fuzz minimal lint package doc
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# make/make/p' Makefile

demo:
	@scripts/need cargo
	$(CARGO) run --release -p examples --bin orders -- $(ARGS)

demo-sentinel:
	@scripts/need cargo redis
	$(CARGO) run --release -p examples --bin orders -- --demo-sentinel $(ARGS)

demo-rabbitmq:
	@scripts/need cargo redis kafka rabbitmq
	$(CARGO) run --quiet -p broker-demo -- rabbitmq $(ARGS)

demo-streams:
	@scripts/need cargo redis kafka
	$(CARGO) run --quiet -p broker-demo -- streams $(ARGS)

demo-nats:
	@scripts/need cargo redis kafka nats
	$(CARGO) run --quiet -p broker-demo -- nats $(ARGS)

demo-kafka:
	@scripts/need cargo redis kafka
	$(CARGO) run --quiet -p broker-demo -- kafka $(ARGS)

test:
	@scripts/need cargo redis prometheus
	$(CARGO) test --workspace $(FAULTS:%=--exclude %) $(ADAPTERS:%=--exclude %) $(CONSOLE:%=--exclude %) --all-features --no-fail-fast $(ARGS)
	@echo 'make test: everything passed'

test-faults:
	@scripts/need cargo redis
	$(CARGO) test --release -p sim
	scripts/known-bugs
	$(CARGO) run --quiet --release -p sim --bin soak -- --seeds 1000
	$(CARGO) test -p hostile -p nemesis --no-fail-fast
	scripts/other-servers
	scripts/other-clients
	@echo 'make test-faults: everything passed'

test-adapters:
	@scripts/need cargo redis kafka nats rabbitmq postgres pgbouncer mariadb
	$(CARGO) test $(ADAPTERS:%=-p %) --all-features --no-fail-fast $(ARGS)
	@echo 'make test-adapters: everything passed'

# Without nodes it shows a demo.
console:
	@scripts/need cargo $(if $(findstring --node,$(ARGS)),,redis)
	$(CARGO) run --release -p palisade-cli -- console $(if $(findstring --node,$(ARGS)),,--demo --allow-actions) $(ARGS)

# The last line has the figures that are compared from run to run; the tests write all of them.
test-console:
	@scripts/need cargo redis chromium
	@rm -f $(FIGURES:%=$(CONSOLE_TMP)/console-%.json)
	$(CARGO) test -p $(CONSOLE) --all-features --no-fail-fast $(ARGS)
	@echo 'make test-console: everything passed'
	@cat $(CONSOLE_TMP)/console-more.json $(CONSOLE_TMP)/console-first.json | tr -d '\n' | sed 's/}{/,/g'; echo
	@cat $(CONSOLE_TMP)/console-browser.json $(CONSOLE_TMP)/console-attacks.json | tr -d '\n' | sed 's/}{/,/g'; echo

console-pictures:
	@scripts/need cargo redis chromium
	CONSOLE_PICTURES=1 $(CARGO) test -p $(CONSOLE) --all-features --test browser -- --exact pictures::pictures

# Whatever is wrong, make itself says "Error 2": a script runs the program for its exit codes.
doctor:
	@scripts/need cargo
	@$(CARGO) run --quiet -p palisade-cli -- doctor $(ARGS)

test-conf:
	@scripts/need redis
	sentinel-conf/test

nemesis:
	@scripts/need netns cargo redis
	$(CARGO) run --release -p nemesis -- --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Where it is not possible it is skipped, and that is no failure.
failover-table:
	@if [ "$$(id -u)" -ne 0 ]; then \
	    echo 'failover-table: skipped: networks are made and cut by root only' >&2; exit 0; \
	fi; \
	scripts/need netns cargo redis && \
	$(CARGO) run --release --quiet -p nemesis -- table $(ARGS) || \
	{ code=$$?; [ $$code -ne 77 ] || { echo 'failover-table: skipped' >&2; exit 0; }; exit $$code; }

ordinary:
	@scripts/need cargo redis
	@$(CARGO) run --release --quiet -p nemesis -- ordinary $(ARGS)

# Where it is not possible it is skipped, and that is no failure.
demo-cron:
	@scripts/need netns cargo redis
	@$(CARGO) run --release --quiet -p nemesis -- cron --seconds $(SECONDS) || \
	{ code=$$?; [ $$code -ne 77 ] || { echo 'demo-cron: skipped' >&2; exit 0; }; exit $$code; }

demo-locks:
	@scripts/need cargo redis
	@$(CARGO) run --release --quiet -p nemesis -- locks --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench:
	@scripts/need cargo redis
	$(CARGO) bench --bench pair -- $(filter-out --,$(ARGS))

bench-idempotency:
	@scripts/need cargo redis
	$(CARGO) bench --bench idempotency $(ARGS)
	$(CARGO) test --release --quiet -p palisade-tower --features axum --test http cost -- --nocapture

soak:
	@scripts/need cargo
	$(CARGO) run --release -p sim --bin soak -- --seeds $(SEEDS) $(ARGS)

mutants:
	@scripts/need cargo redis mutants
	$(CARGO) run --quiet -p mutants -- $(if $(SEED),--seed $(SEED)) $(if $(SHARD),--shard $(SHARD)) $(ARGS)

fuzz:
	@scripts/need cargo
	PROPTEST_CASES=$(CASES) $(CARGO) test -p palisade -p palisade-ops --lib --test api $(ARGS) -- fuzz

minimal:
	@scripts/need cargo
	scripts/minimal-versions

lint:
	@scripts/need cargo kafka
	scripts/lint-lua
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --all-features
	scripts/minimal-versions
	scripts/deny
	@echo 'make lint: nothing to say'

# Cargo keeps what it unpacked when this version was checked before, and would check against that.
package:
	@scripts/need cargo kafka
	@rm -rf "$${CARGO_HOME:-$$HOME/.cargo}"/registry/src/-*/palisade*-[0-9]*
	$(CARGO) package $(PUBLISHED:%=-p %)

doc:
	@scripts/need cargo kafka
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --all-features
