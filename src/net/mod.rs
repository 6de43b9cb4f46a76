//! Below the parties: TCP with deadlines, TLS, proxies, addresses. Knows no protocol above TLS.
