//! Files of the page, compressed into the program at build time.

use std::io::Read;

use flate2::bufread::GzDecoder;
use hyper::{StatusCode, header};
use ring::digest::{SHA256, digest};

use super::reply::Reply;
use crate::core::format::hex;

/// One file.
struct Asset {
    name: &'static str,
    kind: &'static str,
    packed: &'static [u8],
}

const ASSETS: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// Cached version of a requester, and the encodings that it accepts.
#[derive(Clone, Debug, Default)]
pub(super) struct Cache {
    /// True if it reads gzip.
    pub(super) takes_gzip: bool,
    /// `If-None-Match`.
    pub(super) has: Option<String>,
}

/// Returns whether an `Accept-Encoding` names gzip, and not as something that is not wanted.
pub(super) fn takes_gzip(accepted: &str) -> bool {
    accepted.split(',').any(|one| {
        let (name, quality) = one.split_once(';').unwrap_or((one, ""));
        let is_unwanted = quality
            .trim()
            .strip_prefix("q=")
            .is_some_and(|quality| quality.trim_matches(['0', '.']).is_empty());
        name.trim().eq_ignore_ascii_case("gzip") && !is_unwanted
    })
}

/// The file of that name.
pub(super) fn reply(name: &str, cache: &Cache) -> Reply {
    match ASSETS.iter().find(|asset| asset.name == name) {
        Some(asset) => packed(asset.kind, asset.packed, cache),
        None => Reply::not_found("there is no such file", Some("GET /")),
    }
}

/// Reply with an asset that was compressed at build time. Browsers revalidate it each time: a newer
/// program has other files under the same names.
fn packed(kind: &'static str, bytes: &'static [u8], cache: &Cache) -> Reply {
    let hash = digest(&SHA256, bytes);
    // Twelve bytes of it: nobody gains by two files of one tag.
    let short = hash.as_ref().get(..12).unwrap_or_default();
    let tag = format!("\"{}\"", hex(short));
    let is_had = cache.has.as_ref().is_some_and(|had| had.contains(&tag));
    let reply = if is_had {
        Reply::whole(kind, "").with_code(StatusCode::NOT_MODIFIED)
    } else if cache.takes_gzip {
        Reply::whole(kind, bytes).with(header::CONTENT_ENCODING, "gzip")
    } else {
        let mut plain = Vec::new();
        match GzDecoder::new(bytes).read_to_end(&mut plain) {
            Ok(_) => Reply::whole(kind, plain),
            Err(error) => {
                let error = format!("a file of this program is damaged: {error}");
                let fix = Some("install it again");
                return Reply::refusal(StatusCode::INTERNAL_SERVER_ERROR, error, fix);
            }
        }
    };
    reply
        .with(header::ETAG, &tag)
        .with(header::CACHE_CONTROL, "no-cache")
        .with(header::VARY, "accept-encoding")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoding_is_taken_where_it_is_named_and_wanted() {
        for (accepted, wanted) in [
            ("gzip", true),
            ("gzip, deflate, br, zstd", true),
            ("br;q=1.0, GZIP;q=0.8", true),
            ("gzip;q=0", false),
            ("gzip; q=0.0", false),
            ("identity", false),
            ("xgzip", false),
            ("", false),
        ] {
            assert_eq!(takes_gzip(accepted), wanted, "{accepted}");
        }
    }

    #[test]
    fn every_file_is_the_same_packed_and_plain_and_is_sent_once() {
        assert!(!ASSETS.is_empty());
        for asset in ASSETS {
            let plain = reply(asset.name, &Cache::default());
            let mut unpacked = Vec::new();
            GzDecoder::new(asset.packed)
                .read_to_end(&mut unpacked)
                .unwrap();
            assert_eq!(plain.bytes(), unpacked, "{}", asset.name);
            let cache = Cache {
                takes_gzip: true,
                has: None,
            };
            let packed = reply(asset.name, &cache);
            assert_eq!(packed.bytes(), asset.packed, "{}", asset.name);
            let tag = packed.header(&header::ETAG).unwrap().to_owned();
            let again = Cache {
                takes_gzip: true,
                has: Some(format!("\"other\", W/{tag}")),
            };
            let again = reply(asset.name, &again);
            assert_eq!(again.code(), StatusCode::NOT_MODIFIED);
            assert_eq!(again.bytes(), b"");
        }
        assert_eq!(reply("app.exe", &Cache::default()).code(), 404);
    }
}
