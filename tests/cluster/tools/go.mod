module pipeops.invalid/tests/cluster/tools

go 1.24.0

require github.com/gorilla/websocket v1.5.3
