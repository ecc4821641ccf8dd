# Thin names over scripts/; see README.md.
.PHONY: setup run portal portal-real clients test check bench-check lint lock dist clean sim soak fuzz

setup:
	@scripts/setup.sh

run:
	@exec scripts/run.sh $(ARGS)

portal:
	@exec scripts/portal.sh $(ARGS)

portal-real:
	@exec scripts/portal.sh --real $(ARGS)

clients:
	@exec scripts/clients.sh $(or $(ARGS),build/clients)

test:
	@exec scripts/test.sh $(ARGS)

check: setup
	@exec scripts/check.sh

bench-check: setup
	@exec .venv/bin/muster bench compare $(ARGS)

lint: setup
	@exec scripts/lint.sh

sim: setup
	@cargo run --locked --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --seeds 0..1000 $(ARGS)
	@cargo run --locked --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --members --seeds 0..10000 $(ARGS)
	@cargo run --locked --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --apart --seeds 0..500 $(ARGS)
	@cargo run --locked --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --holes --seeds 0..300 $(ARGS)
	@cargo run --locked --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --moves --seeds 0..500 $(ARGS)
	@cargo run --locked --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --grows --seeds 0..1000 $(ARGS)
	@cargo run --locked --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --rekeys --seeds 0..500 $(ARGS)
	@cargo run --locked --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --matrix --seeds 0..20 $(ARGS)
	@cargo run --locked --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --clusters --seeds 0..500 $(ARGS)
	@cargo run --locked --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --relays --seeds 0..1000 $(ARGS)
	@cargo run --locked --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --commands --seeds 0..500 $(ARGS)
	@cargo run --locked --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --lossy --seeds 0..10 $(ARGS)
	@cargo run --locked --release --quiet --manifest-path core/Cargo.toml -p muster-sim -- --kills --seeds 0..1000 $(ARGS)
	@PRESENCE_SEEDS=3000 cargo test --locked --quiet --manifest-path core/Cargo.toml -p muster-presence --test sim
	@MUSTERTEST_SEEDS=20 exec .venv/bin/pytest -q tests/control/cluster/test_doubling.py

soak: setup
	@exec .venv/bin/pytest -m soak $(ARGS)

fuzz:
	@exec scripts/fuzz.sh $(ARGS)

dist:
	@exec scripts/dist.sh

lock:
	@exec scripts/lock.sh

clean:
	rm -rf .venv .tools build dist *.egg-info core/target
	find core src pyext bench -name '*.so' -delete
	find pyext bench -name '*.c' -delete
