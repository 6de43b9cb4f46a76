# pipeops-agent. Two targets do everything on a fresh machine: `make run` and `make test`.

export PATH := $(HOME)/.cargo/bin:$(PATH)
# A pipe fails when any part of it fails.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

.PHONY: help run test test-packages test-arm64 test-k3s pages torture soak corpus fuzz mutants check bench dist repo reproduce clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make run     the main job: control plane and agent side by side (CLUSTER=bench: with a real cluster, as root)
run:
	@CLUSTER='$(CLUSTER)' tests/run

## make test    all tests; what this machine cannot run is listed at the end
test:
	@tests/all

## make test-packages  packages beyond those of make test: Debian 13, OpenRC, updates, the key of a release, the repositories (as root)
test-packages:
	@tests/packages/all

## make test-arm64  the release for arm64, emulated (programs, then a whole machine): installed, set up, rebooted, upgraded, removed and purged (as root)
test-arm64:
	@tests/packages/arm64

## make test-k3s  k3s installed, joined, rebooted and removed under systemd and OpenRC (as root; PIPEOPS_TEST_K3S: a folder of real releases)
test-k3s:
	@cargo build --quiet
	@tests/k3s/run
	@tests/k3s/run --data-dir /mnt/disk/k3s
	@tests/k3s/run --openrc
	@tests/k3s/join
	@tests/k3s/servers
	@tests/k3s/run --faults

## make pages   every page at every width, light and dark, in a real browser: pictures in target/screenshots
pages:
	@tests/pages

## make torture 1,000 power cuts of each database, an error at each call of some minutes, a month off line, five years of Pods, each write of an app, changes of k3s killed and cut off (as root)
torture:
	@tests/torture

## make soak    kubectl two minors older, then a log, a quiet watch and an informer for SOAK_SECONDS=3600, in both forms
soak:
	@tests/soak

## make corpus  records the rollouts of tests/data/rollouts again and judges them live (as root; CORPUS=name,name for some)
corpus:
	@tests/corpus

## make fuzz    foreign bytes against their readers, FUZZ_SECONDS=60 for each target
fuzz:
	@tests/fuzz/run

## make mutants small changes of the decisions, each of which a unit test has to notice (by hand: hours)
mutants:
	@tests/mutants

## make check   format, lints as errors, links in the documentation, licences and bans
check:
	@tests/check

## make bench   the figures, beside the existing agent's where PIPEOPS_BENCH_RIVAL names it (BENCH=--gate: fails on a missed goal; BENCH=--help)
bench:
	@tests/bench/run $(BENCH)

## make dist    the release in target/dist: static programs for amd64 and arm64, their size checked, packages, tarballs, checksums
dist:
	@packaging/dist

## make repo    repositories for apt and dnf in target/repo, of the packages in target/dist (PIPEOPS_REPO_KEYS names the OpenPGP keys)
repo:
	@packaging/repo

## make reproduce  the release, built twice in two folders: the same bytes, or a failure
reproduce:
	@packaging/reproduce

## make clean   remove everything that was built here
clean:
	cargo clean
