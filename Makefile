# pipeops-agent. Two targets do everything on a fresh machine: `make run` and `make test`.

export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: help run test pages torture soak fuzz check bench dist clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make run     the main job: control plane and agent side by side (CLUSTER=bench: with a real cluster, as root)
run:
	@CLUSTER='$(CLUSTER)' tests/run

## make test    all tests; what this machine cannot run is listed at the end
test:
	@tests/all

## make pages   every page at every width, light and dark, in a real browser: pictures in target/screenshots
pages:
	@tests/setup test
	@cargo build --workspace
	@PIPEOPS_PAGES=all tests/browser/run

## make torture 1,000 power cuts, an error at each call of some minutes, a month off line: of the samples (as root)
torture:
	@tests/setup test
	@PIPEOPS_TORTURE=1 cargo test --locked --test it -- --nocapture telemetry::power telemetry::faults telemetry::month | grep -v '^told'

## make soak    kubectl two minors older, then a log, a quiet watch and an informer for SOAK_SECONDS=3600, in both forms
soak:
	@tests/soak

## make fuzz    foreign bytes against their readers, FUZZ_SECONDS=60 for each target
fuzz:
	@tests/fuzz/run

## make check   format, lints as errors, links in the documentation, licences and bans
check:
	@tests/setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --locked --document-private-items
	@if cargo deny --version >/dev/null 2>&1; then \
		cargo deny --offline --log-level error check bans licenses sources; \
	else \
		echo 'cargo-deny is not installed, so licences and bans were not checked: cargo install --locked cargo-deny'; \
	fi

## make bench   the figures, beside the existing agent's where PIPEOPS_BENCH_RIVAL names it (BENCH='--only latency', BENCH=--help)
bench:
	@tests/bench/run $(BENCH)

## make dist    the release program in target/dist, its size checked
dist:
	@tests/dist

## make clean   remove everything that was built here
clean:
	cargo clean
