//! Messages: the JSON form of proxied calls, one message for each piece of an exchange.

pub(super) mod answer;
pub(super) mod exchange;
pub(super) mod frames;
pub(super) mod socket;
pub(super) mod table;
