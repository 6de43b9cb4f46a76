//! Care of the machine: the doctor, the client of the keeper, the findings of root's watch over
//! k3s, and copies of its backups.

pub mod copies;
pub mod doctor;
pub mod k3s;
pub mod keeper;
pub mod stall;
