//! The integration tests, in one binary.

#[cfg(test)]
mod kube;
#[cfg(test)]
mod proxy;
mod tidy;
