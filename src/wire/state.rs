//! Identity in its small file: JSON that a person can read, with a checksum that a torn or edited
//! file fails.

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::json::{self, fields};
use crate::core::{
    format::hex,
    identity::{Fingerprint, ForeignIdentity, Identity},
    time::Wall,
};

/// The format that this program writes. A file of a higher one is not read.
const FORMAT: u32 = 1;

/// Reasons why the file was not believed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unreadable {
    /// It is not what was written: torn, edited, or something else.
    Damaged,
    /// A newer program wrote it.
    Newer,
}

#[derive(Deserialize)]
struct Sealed {
    format: u32,
    identity: Box<RawValue>,
    sha256: String,
}

#[derive(Default, Serialize)]
struct Shape {
    generation: u64,
    agent_id: String,
    cluster_id: Option<String>,
    cluster_uuid: Option<String>,
    gateway_ws_url: Option<String>,
    machine: Option<String>,
    board: Option<String>,
    left_agent_id: Option<String>,
    left_cluster_id: Option<String>,
}
fields!(Shape {
    generation,
    agent_id,
    cluster_id,
    cluster_uuid,
    gateway_ws_url,
    machine,
    board,
    left_agent_id,
    left_cluster_id,
});

/// The content of the file.
pub fn write_identity(identity: &Identity) -> serde_json::Result<Vec<u8>> {
    let left = identity.left_behind.clone();
    let shape = Shape {
        generation: identity.generation,
        agent_id: identity.agent_id.clone(),
        cluster_id: identity.cluster_id.clone(),
        cluster_uuid: identity.cluster_uuid.clone(),
        gateway_ws_url: identity.gateway_ws_url.clone(),
        machine: identity.fingerprint.machine.clone(),
        board: identity.fingerprint.board.clone(),
        left_agent_id: left.as_ref().map(|left| left.agent_id.clone()),
        left_cluster_id: left.and_then(|left| left.cluster_id),
    };
    let inner = serde_json::to_string_pretty(&shape)?;
    let sum = checksum(&inner);
    Ok(
        format!("{{\"format\": {FORMAT},\n\"identity\": {inner},\n\"sha256\": \"{sum}\"}}\n")
            .into_bytes(),
    )
}

/// The content of the clock record: milliseconds since 1970, and their checksum.
pub fn write_clock(time: Wall) -> Vec<u8> {
    let millis = time.millis().to_string();
    format!("{millis} {}\n", checksum(&millis)).into_bytes()
}

/// Reads the clock record. `None` where it is not what was written.
pub fn read_clock(content: &[u8]) -> Option<Wall> {
    let text = std::str::from_utf8(content).ok()?;
    let (millis, sum) = text.strip_suffix('\n')?.split_once(' ')?;
    let is_whole = checksum(millis) == sum;
    is_whole.then(|| millis.parse().map(Wall::from_millis).ok())?
}

/// Reads the file's content.
pub fn read_identity(content: &[u8]) -> Result<Identity, Unreadable> {
    let damaged = |_: serde_json::Error| Unreadable::Damaged;
    let sealed: Sealed = serde_json::from_slice(content).map_err(damaged)?;
    if checksum(sealed.identity.get()) != sealed.sha256 {
        return Err(Unreadable::Damaged);
    }
    if sealed.format > FORMAT {
        return Err(Unreadable::Newer);
    }
    let shape: Shape = json::shape(sealed.identity.get().as_bytes()).map_err(damaged)?;
    let left_cluster_id = shape.left_cluster_id;
    Ok(Identity {
        generation: shape.generation,
        agent_id: shape.agent_id,
        cluster_id: shape.cluster_id,
        cluster_uuid: shape.cluster_uuid,
        gateway_ws_url: shape.gateway_ws_url,
        fingerprint: Fingerprint {
            machine: shape.machine,
            board: shape.board,
        },
        left_behind: shape.left_agent_id.map(|agent_id| ForeignIdentity {
            agent_id,
            cluster_id: left_cluster_id,
        }),
    })
}

fn checksum(text: &str) -> String {
    hex(digest(&SHA256, text.as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            generation: 7,
            agent_id: "agent-0123456789abcdef".to_owned(),
            cluster_id: Some("c-1".to_owned()),
            cluster_uuid: None,
            gateway_ws_url: Some("wss://gateway.example/ws?a=\"b\"".to_owned()),
            fingerprint: Fingerprint {
                machine: Some("m".to_owned()),
                board: None,
            },
            left_behind: Some(ForeignIdentity {
                agent_id: "agent-old".to_owned(),
                cluster_id: Some("c-0".to_owned()),
            }),
        }
    }

    #[test]
    fn an_identity_comes_back_as_it_was() {
        for identity in [identity(), Identity::default()] {
            let content = write_identity(&identity).unwrap();
            assert_eq!(read_identity(&content), Ok(identity));
        }
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let content = write_identity(&identity()).unwrap();
        for length in 0..content.len() - 1 {
            assert!(read_identity(&content[..length]).is_err(), "{length}");
        }
        for place in 0..content.len() {
            for bit in 0..8 {
                let mut flipped = content.clone();
                flipped[place] ^= 1 << bit;
                // Where the text still means the same (white space outside the identity), the same
                // is read.
                if let Ok(read) = read_identity(&flipped) {
                    assert_eq!(read, identity(), "{place} {bit}");
                }
            }
        }
    }

    #[test]
    fn a_file_of_a_newer_program_is_told_from_a_damaged_one() {
        let content = String::from_utf8(write_identity(&identity()).unwrap()).unwrap();
        let newer = content.replace("\"format\": 1", "\"format\": 2");
        assert_eq!(read_identity(newer.as_bytes()), Err(Unreadable::Newer));
        assert_eq!(read_identity(b"{}"), Err(Unreadable::Damaged));
    }

    #[test]
    fn a_clock_record_is_read_back_and_a_changed_one_is_not() {
        let time = Wall::from_millis(1_781_589_028_123);
        let content = write_clock(time);
        assert_eq!(read_clock(&content), Some(time));
        for at in 0..content.len() {
            let mut changed = content.clone();
            changed[at] ^= 1;
            assert_eq!(read_clock(&changed), None, "byte {at}");
            assert_eq!(read_clock(&content[..at]), None, "cut at {at}");
        }
    }
}
