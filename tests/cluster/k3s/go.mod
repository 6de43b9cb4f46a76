module pipeops.invalid/tests/cluster/k3s

go 1.24.0
