//! The integration tests, in one binary.

#[cfg(test)]
mod access;
#[cfg(test)]
mod accounts;
#[cfg(test)]
mod agent;
#[cfg(test)]
mod alone;
#[cfg(test)]
mod apps;
#[cfg(test)]
mod bodies;
#[cfg(test)]
mod browse;
#[cfg(test)]
mod by_hand;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod configure;
#[cfg(test)]
mod contract;
#[cfg(test)]
mod copies;
#[cfg(test)]
mod corpus;
#[cfg(test)]
mod credential;
#[cfg(test)]
mod dashboard;
#[cfg(test)]
mod delivery;
#[cfg(test)]
mod descriptors;
#[cfg(test)]
mod docs;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod event_stream;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod follow;
#[cfg(test)]
mod gateway;
#[cfg(test)]
mod hang;
#[cfg(test)]
mod k3s;
#[cfg(test)]
mod keeper;
#[cfg(test)]
mod kube;
#[cfg(test)]
mod kubectl;
#[cfg(test)]
mod lease;
#[cfg(test)]
mod link;
#[cfg(test)]
mod login;
#[cfg(test)]
mod matrix;
#[cfg(test)]
mod mux;
#[cfg(test)]
mod network;
#[cfg(test)]
mod openapi;
#[cfg(test)]
mod operate;
#[cfg(test)]
mod policy;
#[cfg(test)]
mod power;
#[cfg(test)]
mod proxy;
#[cfg(test)]
mod rbac;
#[cfg(test)]
mod released;
#[cfg(test)]
mod remote_write;
#[cfg(test)]
mod rights;
#[cfg(test)]
mod scrape;
#[cfg(test)]
mod scripts;
#[cfg(test)]
mod sentence;
#[cfg(test)]
mod store;
#[cfg(test)]
mod store_faults;
#[cfg(test)]
mod telemetry;
#[cfg(test)]
mod tidy;
#[cfg(test)]
mod trees;
#[cfg(test)]
mod verdict;
#[cfg(test)]
mod views;
#[cfg(test)]
mod withdrawn;
