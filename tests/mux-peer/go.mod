module mux-peer

go 1.20

require github.com/hashicorp/yamux v0.1.2
