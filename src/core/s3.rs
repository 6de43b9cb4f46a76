//! Requests to servers of the S3 protocol: addresses of objects, and the signature of AWS
//! (Signature Version 4).
//!
//! Addresses are in path style (`https://server/bucket/object`), which all servers know.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ring::{digest, hmac};

use super::{format::hex, secret::Secret, time::Wall};

/// Characters that stay as they are in a query.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// Bucket, and the folder in it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Bucket {
    pub name: String,
    /// Beginning of the names of objects: empty, or with a slash at its end.
    pub folder: String,
}

impl Bucket {
    /// Reads the path of a URL: `/bucket` or `/bucket/folder`. The error says why not.
    pub fn parse(path: &str) -> Result<Self, &'static str> {
        let path = path.trim_matches('/');
        let (name, folder) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() {
            return Err("it names no bucket");
        }
        let is_plain = |part: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            !matches!(part, "" | "." | "..") && part.bytes().all(is_plain)
        };
        let mut parts = folder.split('/').filter(|_| !folder.is_empty());
        if !is_plain(name) || !parts.all(is_plain) {
            return Err("bucket and folders must be letters, digits, dots, dashes and underscores");
        }
        Ok(Self {
            name: name.to_owned(),
            folder: match folder {
                "" => String::new(),
                folder => format!("{folder}/"),
            },
        })
    }

    /// Path of the bucket, or of an object in its folder. Names of objects are plain.
    pub fn path(&self, object: Option<&str>) -> String {
        match object {
            Some(object) => format!("/{}/{}{object}", self.name, self.folder),
            None => format!("/{}", self.name),
        }
    }
}

/// Access key, and the region that it signs for.
#[derive(Clone, Debug)]
pub struct Signer {
    /// Id of the access key.
    pub key_id: String,
    /// Secret of the access key.
    pub secret: Secret,
    pub region: String,
}

/// Parts of a request that are signed.
#[derive(Clone, Copy, Debug)]
pub struct Signed<'a> {
    /// `GET`, `PUT` or `DELETE`.
    pub method: &'a str,
    /// Path, encoded.
    pub path: &'a str,
    /// Query as [`query`] makes it.
    pub query: &'a str,
    /// Headers in the order of their names, which are in lower case.
    pub headers: &'a [(&'a str, &'a str)],
    /// SHA-256 of the body, in hexadecimal.
    pub sha256: &'a str,
}

impl Signer {
    /// Value of the header `Authorization`. `at` is the time of the header `x-amz-date`.
    pub fn authorization(&self, request: &Signed<'_>, at: Wall) -> String {
        let time = at.basic();
        let date = time.get(..8).unwrap_or_default();
        let scope = format!("{date}/{}/s3/aws4_request", self.region);
        let headers = request.headers.iter();
        let lines = headers.map(|(name, value)| format!("{name}:{}\n", value.trim()));
        let lines = lines.collect::<Vec<_>>().concat();
        let names: Vec<_> = request.headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let canonical = format!(
            "{}\n{}\n{}\n{lines}\n{names}\n{}",
            request.method, request.path, request.query, request.sha256
        );
        let canonical = digest::digest(&digest::SHA256, canonical.as_bytes());
        let text = format!("{ALGORITHM}\n{time}\n{scope}\n{}", hex(canonical.as_ref()));
        let secret = format!("AWS4{}", self.secret.reveal());
        let steps = [date, &self.region, "s3", "aws4_request", &text];
        let signature = steps
            .iter()
            .fold(secret.into_bytes(), |key, step| sign(&key, step));
        format!(
            "{ALGORITHM} Credential={}/{scope}, SignedHeaders={names}, Signature={}",
            self.key_id,
            hex(&signature)
        )
    }
}

fn sign(key: &[u8], text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

/// Query of these names and values, which are in order.
pub fn query(pairs: &[(&str, &str)]) -> String {
    let encoded = |text| utf8_percent_encode(text, UNRESERVED);
    let pairs = pairs.iter();
    let pairs = pairs.map(|(name, value)| format!("{}={}", encoded(*name), encoded(*value)));
    pairs.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of nothing.
    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const HOST: (&str, &str) = ("host", "examplebucket.s3.amazonaws.com");
    const DATE: (&str, &str) = ("x-amz-date", "20130524T000000Z");

    fn signature(
        method: &str,
        path: &str,
        query: &str,
        (headers, sha256): (&[(&str, &str)], &str),
    ) -> String {
        let signer = Signer {
            key_id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
            region: "us-east-1".to_owned(),
        };
        let request = Signed {
            method,
            path,
            query,
            headers,
            sha256,
        };
        let at = Wall::parse_rfc3339("2013-05-24T00:00:00Z").unwrap();
        let made = signer.authorization(&request, at);
        let begin = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, SignedHeaders=";
        assert!(made.starts_with(begin), "{made}");
        made.rsplit('=').next().unwrap().to_owned()
    }

    /// The examples of "Authenticating Requests: Using the Authorization Header" in the API
    /// reference of Amazon S3.
    #[test]
    fn requests_of_the_documentation_have_the_signatures_of_the_documentation() {
        let empty = ("x-amz-content-sha256", EMPTY);
        let range = ("range", "bytes=0-9");
        assert_eq!(
            signature("GET", "/test.txt", "", (&[HOST, range, empty, DATE], EMPTY)),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        let body = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
        let put = [
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            HOST,
            ("x-amz-content-sha256", body),
            DATE,
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ];
        assert_eq!(
            signature("PUT", "/test%24file.text", "", (&put, body)),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
        );
        let headers = (&[HOST, empty, DATE][..], EMPTY);
        assert_eq!(
            signature("GET", "/", &query(&[("lifecycle", "")]), headers),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        );
        let list = query(&[("max-keys", "2"), ("prefix", "J")]);
        assert_eq!(
            signature("GET", "/", &list, headers),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
    }

    #[test]
    fn a_query_is_encoded_but_for_what_is_plain() {
        assert_eq!(
            query(&[("prefix", "a/b c+d=~"), ("x", "é")]),
            "prefix=a%2Fb%20c%2Bd%3D~&x=%C3%A9"
        );
    }

    #[test]
    fn a_bucket_has_a_name_and_perhaps_folders() {
        let bucket = |name: &str, folder: &str| {
            Ok(Bucket {
                name: name.to_owned(),
                folder: folder.to_owned(),
            })
        };
        assert_eq!(Bucket::parse("/backups"), bucket("backups", ""));
        let found = Bucket::parse("/backups/k3s/box/");
        assert_eq!(found, bucket("backups", "k3s/box/"));
        let found = found.unwrap();
        assert_eq!(found.path(None), "/backups");
        assert_eq!(found.path(Some("a")), "/backups/k3s/box/a");
        for wrong in ["", "/", "/a/../b", "/a//b", "/a b", "/a%20b", "/a/é"] {
            assert!(Bucket::parse(wrong).is_err(), "{wrong}");
        }
    }
}
