//! The plane against scripted agents, plain HTTP clients and kubectl, over real sockets.

#[cfg(test)]
mod agent;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod kubectl;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod streams;
