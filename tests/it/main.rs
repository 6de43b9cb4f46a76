//! The integration tests, in one binary.

#[cfg(test)]
mod cli;
#[cfg(test)]
mod kube;
#[cfg(test)]
mod proxy;
#[cfg(test)]
mod tidy;
