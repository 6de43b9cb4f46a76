//! The party Kubernetes API: client, watches, streams, services. The only room that holds a Kubernetes credential.
