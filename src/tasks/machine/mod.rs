//! Care of the machine: the doctor, the client of the keeper, and what root's watch over k3s has
//! found, and copies of its backups.

pub mod copies;
pub mod doctor;
pub mod k3s;
pub mod keeper;
pub mod stall;
