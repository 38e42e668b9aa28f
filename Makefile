# Each line that begins with "make" is printed by `make help`. The lines below it explain more.
#
# make demo            books orders once, whatever crashes, on nodes in memory: the main use
# make demo-sentinel   runs the same demo on real Sentinel groups, with a failover (Linux)
# make demo-cluster    runs the same demo on a real cluster whose masters fail and whose slots move
#                      Beside the orders, tasks lock names and look whether one is held twice. The
#                      last line is JSON. On a newer Redis and on Valkey:
#                      RUN='make demo-cluster' scripts/other-servers
# make demo-rabbitmq   books real invoices from RabbitMQ, and kills consumers, broker and Redis
# make demo-streams    runs the demo of demo-rabbitmq with Redis Streams
# make demo-nats       runs the demo of demo-rabbitmq with NATS JetStream
# make demo-kafka      runs the demo of demo-rabbitmq with the mock cluster of Kafka's client
# make test            runs all tests of the library and the program
#                      Some of them start real servers (Redis, Prometheus). Up to five tests that
#                      fail run once more, alone; the last lines name them (scripts/run-tests).
# make test-faults     runs the tests of faults, and tests on other servers and with other clients
#                      The simulator must find each of twelve known bugs that are drawn and put back
#                      (scripts/known-bugs puts back all).
#                      Fake servers lie, stall and flood.
#                      Real servers are asked whether they do what the design assumes. Real
#                      processes have faults (as root with netns, else skipped). The tests of the
#                      nodes also run on a current Redis and a current Valkey. Lock clients of other
#                      libraries use the same servers (from PyPI and npm; skipped without pip or
#                      npm).
# make test-adapters   tests the packages in adapters/ on the real brokers and databases (Debian)
# make test-conf       tests the scripts in sentinel-conf on real groups (Linux, one minute)
# make nemesis         injects faults into real processes, judged from outside (Linux, root)
#                      Options: SECONDS=600 SEED=7
# make demo-cron       runs a cron job on three processes while its leader fails (Linux, root)
#                      The job ticks every second, on real Sentinel groups. Every 20 s the leader is
#                      killed, frozen, cut off or made to resign. Option: SECONDS=600
# make demo-locks      uses every kind of lock on three real servers while they and clients fail
#                      The servers are frozen, restarted and killed while eight clients work and are
#                      killed. The result is checked from outside. Option: SECONDS=60
# make failover-table  shows what each fault does to the locks of a Sentinel group (Linux, root)
#                      Each fault is one row. Options: ARGS=--json, or ARGS=--plain for plain writes
#                      under each setting, too
#                      A second table has the faults of a cluster, on loopback, without root.
# make ordinary        shows what ordinary events cost each ordinary deployment, on real servers
#                      The events are a start, a restart, a crash, a planned handover and others.
#                      Options: ARGS=--json, ARGS='--only "one group:"'
# make lineage         shows whether clients notice data that are not those they used
#                      Masters return unchanged, addresses lead to another's servers, replicas copy
#                      another's data, and backups are made. Option: RUNS=20
# make console         opens a live view of a demo deployment in the browser
#                      The demo has orders, locks, an election and a cron job. For a view of your
#                      own deployment: ARGS='--node redis://10.0.0.1'
# make test-console    tests the console on real servers, and its pages in a real browser
#                      The last lines are the measured figures, as JSON.
# make console-pictures  makes the pictures of the console's pages in docs/console anew
# make doctor          checks a deployment: ARGS='--node sentinel://s1,s2,s3/orders'
# make bench           compares the speed of this library with others, in ratios
#                      For each kind of lock in comparison with a mutex: ARGS='--locks --json'
#                      For a cluster in comparison with lone servers: ARGS='--clusters'
# make bench-idempotency  measures the costs of idempotency keys: round trips, batches, bytes
# make soak            runs many seeds of the simulator: SEEDS=100000
#                      To repeat one seed: ARGS='--reproduce SEED'
# make model           explores every history of small worlds: the real rules and machines
#                      For one world: ARGS=permits. The last line is JSON.
# make mutants         shows small changes of the code that the quick tests do not notice
#                      It draws a hundred of some thousand changes by SEED=7. Or it runs one part of
#                      them all: SHARD=3/40
# make fuzz            feeds random input to all parsers: CASES=100000
#                      The parser of the servers' replies gets ten times as many cases.
# make minimal         builds with the lowest versions of the dependencies (skipped offline)
# make lint            checks format, clippy, rustdoc, lowest versions, licences and advisories
# make package         packs the published packages, and builds each one from its pack
# make doc             builds the manual in target/doc
#
# The variable ARGS is passed to the example, the tests or the bench: make test ARGS='--test tidy'

CARGO ?= cargo
ARGS ?=
SEEDS ?= 20000
CASES ?= 100000
SECONDS ?= 60
SEED ?=
SHARD ?=
RUNS ?= 20
# At least 4 tests run at the same time, because most tests wait for servers most of the time.
export RUST_TEST_THREADS ?= $(shell n=$$(nproc 2>/dev/null || echo 1); echo $$((n > 4 ? n : 4)))
# Shells that were started before rustup installed the toolchain do not have it on their path.
export PATH := $(PATH):$(HOME)/.cargo/bin

# Packages of the workspace that have their own dependencies. Their tests need further servers.
CONSOLE = palisade-console
CONSOLE_TMP = $${CARGO_TARGET_DIR:-target}/tmp
FIGURES = more first browser attacks
BROKERS = palisade-kafka palisade-lapin palisade-nats palisade-streams
ADAPTERS = $(BROKERS) palisade-sqlx palisade-tower broker-demo
# Packages that are published.
PUBLISHED = palisade palisade-consumer palisade-cron palisade-ops palisade-console palisade-cli palisade-testing $(ADAPTERS:broker-demo=)
# The packages that `make test` builds. `make test-faults` asks for the same ones, so that cargo does
# not build their dependencies a second time with other features. The tests of the packages hostile
# and nemesis take minutes; their manifests say `test = false`, so that they run only by name.
TESTED = --workspace $(ADAPTERS:%=--exclude %) --exclude $(CONSOLE) --exclude assumptions --exclude sim --exclude model --all-features

.PHONY: help console console-pictures demo demo-cluster demo-cron demo-sentinel demo-rabbitmq demo-streams demo-nats demo-kafka demo-locks test test-console test-faults test-adapters doctor test-conf nemesis failover-table ordinary lineage bench bench-idempotency soak model mutants fuzz minimal lint package doc
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# make/make/p' Makefile

demo:
	@scripts/need cargo
	$(CARGO) run --release -p examples --bin orders -- $(ARGS)

demo-sentinel:
	@scripts/need cargo redis
	$(CARGO) run --release -p examples --bin orders -- --demo-sentinel $(ARGS)

demo-cluster:
	@scripts/need cargo redis
	$(CARGO) run --release -p examples --bin orders -- --demo-cluster --json $(ARGS)

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
	@scripts/run-tests $(CARGO) test $(TESTED) --no-fail-fast $(ARGS)
	@echo 'make test: everything passed'

test-faults:
	@scripts/need cargo redis
	scripts/known-bugs some
	$(CARGO) test --quiet --profile sim -p model
	$(CARGO) test $(TESTED) --no-fail-fast --test hostile --test 'short_*' --test ordinary
	$(CARGO) run --quiet -p assumptions
	TESTED='$(TESTED)' scripts/other-servers
	scripts/other-clients
	@echo 'make test-faults: everything passed'

test-adapters:
	@scripts/need cargo redis kafka nats rabbitmq postgres pgbouncer mariadb
	$(CARGO) test $(ADAPTERS:%=-p %) --all-features --no-fail-fast $(ARGS)
	@echo 'make test-adapters: everything passed'

# If ARGS names no node, the console shows a demo deployment, which needs Redis.
console:
	@scripts/need cargo $(if $(findstring --node,$(ARGS)),,redis)
	$(CARGO) run --release -p palisade-cli -- console $(if $(findstring --node,$(ARGS)),,--demo --allow-actions) $(ARGS)

# The tests write their figures into files. The last lines print the figures, so that runs can be
# compared.
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

# If the doctor finds a problem, make always exits with 2. A script that needs the doctor's own exit
# codes must run the program itself.
doctor:
	@scripts/need cargo
	@$(CARGO) run --quiet -p palisade-cli -- doctor $(ARGS)

test-conf:
	@scripts/need redis
	sentinel-conf/test

nemesis:
	@scripts/need netns cargo redis
	$(CARGO) run --release -p nemesis -- --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

# If this machine or user cannot run it, it is skipped, and make succeeds.
failover-table:
	@scripts/need cargo redis
	@$(CARGO) run --release --quiet -p nemesis -- shards $(filter --json,$(ARGS))
	@if [ "$$(id -u)" -ne 0 ]; then \
	    echo 'failover-table: skipped: networks are made and cut by root only' >&2; exit 0; \
	fi; \
	scripts/need netns cargo redis && \
	$(CARGO) run --release --quiet -p nemesis -- table $(ARGS) || \
	{ code=$$?; [ $$code -ne 77 ] || { echo 'failover-table: skipped' >&2; exit 0; }; exit $$code; }

ordinary:
	@scripts/need cargo redis
	@$(CARGO) run --release --quiet -p nemesis -- ordinary $(ARGS)

lineage:
	@scripts/need cargo redis
	@$(CARGO) run --release --quiet -p nemesis -- lineage --runs $(RUNS) $(ARGS)

# If this machine or user cannot run it, it is skipped, and make succeeds.
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

model:
	@scripts/need cargo
	@$(CARGO) run --quiet --profile sim -p model -- $(ARGS)

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
	PALISADE_PUBLIC=1 $(CARGO) test --all-features --test tidy public
	scripts/minimal-versions
	scripts/deny
	@echo 'make lint: nothing to say'

# Cargo keeps the unpacked packages of an earlier run with the same version, and would check against
# those. So they are deleted first.
package:
	@scripts/need cargo kafka
	@rm -rf "$${CARGO_HOME:-$$HOME/.cargo}"/registry/src/-*/palisade*-[0-9]*
	$(CARGO) package $(PUBLISHED:%=-p %)

doc:
	@scripts/need cargo kafka
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --all-features
	$(CARGO) test --all-features --test tidy -- --ignored
