//! Apps on the wire: their records in the cluster, and requests about them.

mod record;
mod requests;

pub use record::{
    LABEL, PACKED_BYTES_MAX, Stored, is_record, pack, read_record, record, record_name,
    revision_name, unpack,
};
pub use requests::{
    AppArgs, ApplyRequest, GitArgs, GitPlace, LogRequest, PullRequest, RollbackRequest,
    ScaleRequest, SourceRequest,
};
