//! Care of the machine: the doctor and the client of the keeper.

pub mod doctor;
pub mod keeper;
pub mod stall;
