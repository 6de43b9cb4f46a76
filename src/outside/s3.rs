//! Client of a server of the S3 protocol: lists, writes and removes objects of one bucket.
//!
//! Every request is signed with the hash of its body, so that the server refuses what was changed
//! or cut on the way. Redirects are not followed.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use ureq::{
    Body,
    http::{
        Request, StatusCode,
        header::{AUTHORIZATION, EXPECT, HOST, HeaderValue, LOCATION},
    },
};

use super::{
    post::printable,
    transport::{Calls, Limits, Transport, dial_error},
};
use crate::{
    core::{
        s3::{Bucket, Signed, Signer, query},
        time::{Wall, in_words},
        url::Url,
    },
    error::{Error, Result, Retry},
    executor,
    files::{self, Sum},
    net::deadline,
    wire::s3,
};

/// Deadline of a request without a body, and of the answer to one with a body.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Rate below which an upload is given up: it would be held up for days.
const BYTES_A_SECOND: u64 = 8 * 1024;
/// The longest answer: a page of a thousand names takes half of it.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Pages of a list. The objects of one machine are a dozen, and a thousand are on a page.
const PAGES_MAX: usize = 10;
/// The longest object that one request may write, by the protocol.
const OBJECT_BYTES_MAX: u64 = 5 << 30;
/// SHA-256 of no body.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Bucket of a server.
#[derive(Clone, Debug)]
pub struct Store {
    /// Transport.
    pub transport: Transport,
    /// Address of the bucket.
    pub url: Url,
    pub bucket: Bucket,
}

/// Signer and time of a request.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// Signs requests.
    pub signer: &'a Signer,
    /// Current time.
    pub now: Wall,
}

/// Result of a removal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Removal {
    /// The object is gone.
    Done,
    /// The key may not remove anything, which protects the copies.
    Forbidden,
}

struct Ask<'a> {
    method: &'static str,
    object: Option<&'a str>,
    query: String,
    body: Option<(&'a Path, &'a Sum)>,
}

struct Answered {
    status: StatusCode,
    location: Option<HeaderValue>,
    body: Vec<u8>,
}

impl Store {
    /// Objects whose names begin so, without the folder: names and lengths.
    ///
    /// # Errors
    /// There was no answer, a refusal, or a list without an end.
    pub async fn list(&self, beginning: &str, caller: Caller<'_>) -> Result<Vec<(String, u64)>> {
        let prefix = format!("{}{beginning}", self.bucket.folder);
        let mut objects = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let mut pairs = vec![("list-type", "2"), ("prefix", &prefix)];
            if let Some(token) = &token {
                pairs.insert(0, ("continuation-token", token));
            }
            let ask = Ask {
                method: "GET",
                object: None,
                query: query(&pairs),
                body: None,
            };
            let answered = self.ask(&ask, caller).await?;
            if answered.status != StatusCode::OK {
                return Err(self.refused(&answered));
            }
            let text = String::from_utf8_lossy(&answered.body);
            let page = s3::page(&text).ok_or_else(|| {
                self.failure()
                    .why("its list of objects is cut, or of another form")
                    .fix("check k3s.backup_s3: is it a server of the S3 protocol?")
                    .retry(Retry::Soon)
            })?;
            let own = page.objects.into_iter().filter_map(|(name, bytes)| {
                let name = name.strip_prefix(&self.bucket.folder)?.to_owned();
                Some((name, bytes))
            });
            objects.extend(own);
            match page.next {
                None => return Ok(objects),
                next => token = next,
            }
        }
        let why = format!("its list of objects {prefix}… has more than {PAGES_MAX} pages");
        let fix = "give the machine its own folder in k3s.backup_s3";
        Err(self.failure().why(why).fix(fix))
    }

    /// Writes the file that has this sum to an object, in place of an earlier one.
    ///
    /// # Errors
    /// The server did not say that it has the whole object.
    pub async fn put(&self, object: &str, from: (&Path, &Sum), caller: Caller<'_>) -> Result<()> {
        if from.1.bytes > OBJECT_BYTES_MAX {
            let why = format!("{object} has more than 5 GiB, which one request may have");
            return Err(self.failure().why(why));
        }
        let ask = Ask {
            method: "PUT",
            object: Some(object),
            query: String::new(),
            body: Some(from),
        };
        let answered = self.ask(&ask, caller).await?;
        match answered.status {
            StatusCode::OK => Ok(()),
            _ => Err(self.refused(&answered)),
        }
    }

    /// Removes an object.
    ///
    /// # Errors
    /// There was no answer, or a refusal for another reason than rights.
    pub async fn remove(&self, object: &str, caller: Caller<'_>) -> Result<Removal> {
        let ask = Ask {
            method: "DELETE",
            object: Some(object),
            query: String::new(),
            body: None,
        };
        let answered = self.ask(&ask, caller).await?;
        match answered.status {
            StatusCode::OK | StatusCode::NO_CONTENT | StatusCode::NOT_FOUND => Ok(Removal::Done),
            StatusCode::FORBIDDEN => Ok(Removal::Forbidden),
            _ => Err(self.refused(&answered)),
        }
    }

    fn failure(&self) -> Error {
        Error::new(format!("backups are not copied to {}", self.url))
    }

    async fn ask(&self, ask: &Ask<'_>, caller: Caller<'_>) -> Result<Answered> {
        let bytes = ask.body.map_or(0, |(_, sum)| sum.bytes);
        let within = ANSWER_WITHIN + Duration::from_secs(bytes / BYTES_A_SECOND);
        let (request, path) = self.request(ask, caller)?;
        let calls = self.transport.calls(Limits {
            body: Some(ANSWER_WITHIN),
            read: None,
        });
        let work = Box::pin(converse(&calls, request, path));
        let Ok(answered) = deadline(within, work).await else {
            let why = format!("no answer within {}", in_words(within));
            return Err(self.failure().why(why).retry(Retry::Soon));
        };
        answered.map_err(|broken| match broken {
            Broken::File(error) => error,
            Broken::Call(error) => match dial_error(&error) {
                Some(dial) => Error::from(dial).within(self.failure().what),
                None => self.failure().because(&error).retry(Retry::Soon),
            },
        })
    }

    fn request(&self, ask: &Ask<'_>, caller: Caller<'_>) -> Result<(Request<()>, Option<PathBuf>)> {
        let (host, time) = (self.url.authority(), caller.now.basic());
        let sha256 = ask.body.map_or(EMPTY, |(_, sum)| sum.sha256.as_str());
        let headers = [
            (HOST.as_str(), host.as_str()),
            ("x-amz-content-sha256", sha256),
            ("x-amz-date", &time),
        ];
        let path = self.bucket.path(ask.object);
        let signed = Signed {
            method: ask.method,
            path: &path,
            query: &ask.query,
            headers: &headers,
            sha256,
        };
        let authorization = caller.signer.authorization(&signed, caller.now);
        let unusable = |why: &str| {
            let error = self.failure().why(why.to_owned());
            error.fix("check k3s.backup_s3_key_id")
        };
        let mut value = HeaderValue::try_from(authorization).or(Err(unusable(
            "the key has characters that no header may have",
        )))?;
        value.set_sensitive(true);
        let base = Url {
            path: String::new(),
            query: None,
            ..self.url.clone()
        };
        let mark = if ask.query.is_empty() { "" } else { "?" };
        let mut request = Request::builder()
            .method(ask.method)
            .uri(format!("{base}{path}{mark}{}", ask.query))
            .header(AUTHORIZATION, value);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if ask.body.is_some() {
            // So that a refusal comes before the body, which may take an hour.
            request = request.header(EXPECT, "100-continue");
        }
        let request = request
            .body(())
            .or(Err(unusable("its address is not valid in an HTTP request")))?;
        Ok((request, ask.body.map(|(path, _)| path.to_owned())))
    }

    /// The error for an answer that is no success.
    fn refused(&self, answered: &Answered) -> Error {
        let status = answered.status;
        let refusal = s3::refusal(&String::from_utf8_lossy(&answered.body));
        let message = printable(refusal.message.as_bytes());
        let code = printable(refusal.code.as_bytes());
        let said = match (code.as_str(), message.as_str()) {
            ("", _) => format!("it answered HTTP {status}"),
            (code, "") => format!("it answered HTTP {status}: {code}"),
            (code, message) => format!("it answered HTTP {status}: {code}: {message}"),
        };
        let error = self.failure().why(said);
        match (status.as_u16(), refusal.code.as_str()) {
            (_, "RequestTimeTooSkewed") => {
                error.fix("set the clock of this machine: pipeops-agent doctor")
            }
            (_, "SignatureDoesNotMatch") => error.fix(
                "put the secret of the access key into the file of k3s.backup_s3_secret_file; a changed file is read without a restart",
            ),
            (_, "InvalidAccessKeyId") => error.fix("check k3s.backup_s3_key_id"),
            // Of Ceph; MinIO has its own name before it.
            (_, code) if code.ends_with("QuotaExceeded") => error.fix(
                "raise the quota of the bucket, or remove other objects from it: copies that are too many are removed before the next try",
            ),
            (_, "NoSuchBucket") => error.fix("create the bucket, or correct k3s.backup_s3"),
            (_, "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException") => {
                error.fix("set k3s.backup_s3_region to the region of the bucket")
            }
            (401 | 403, _) => error.fix(
                "let the key of k3s.backup_s3_key_id list the bucket and write objects (s3:ListBucket, s3:PutObject)",
            ),
            (300..=399, _) => {
                let to = answered.location.as_ref().map(HeaderValue::as_bytes);
                let to = printable(to.unwrap_or_default());
                let why = format!("it redirects to {to:?}, which is not followed");
                error.why(why).fix(
                    "set k3s.backup_s3 to the address of the bucket itself, and k3s.backup_s3_region to its region",
                )
            }
            // Among them a body that was changed or cut on the way.
            (400, "XAmzContentSHA256Mismatch" | "BadDigest" | "IncompleteBody" | "RequestTimeout")
            | (408 | 425 | 429 | 500..=599, _) => error.retry(Retry::Soon),
            _ => error.fix("check k3s.backup_s3"),
        }
    }
}

enum Broken {
    File(Error),
    Call(ureq::Error),
}

/// Makes one call in the blocking pool. It ends with `calls`, should nobody wait for it any more.
async fn converse(
    calls: &Calls,
    request: Request<()>,
    body: Option<PathBuf>,
) -> std::result::Result<Answered, Broken> {
    let agent = calls.agent.clone();
    executor::unblock(move || {
        let (head, ()) = request.into_parts();
        let response = match body {
            None => agent.run(Request::from_parts(head, ())),
            Some(path) => {
                let file = File::open(&path).map_err(|error| {
                    let what = format!("cannot read {}", path.display());
                    Broken::File(files::explain(what, &error).retry(Retry::Soon))
                })?;
                agent.run(Request::from_parts(head, file))
            }
        };
        let (head, body) = response.map_err(Broken::Call)?.into_parts();
        Ok(Answered {
            status: head.status,
            location: head.headers.get(LOCATION).cloned(),
            body: read(body)?,
        })
    })
    .await
}

/// The body of an answer, up to the most that is read. What is longer is cut, and then of no form
/// that is understood.
fn read(body: Body) -> std::result::Result<Vec<u8>, Broken> {
    let mut read = Vec::new();
    let ended = body
        .into_reader()
        .take(ANSWER_BYTES_MAX)
        .read_to_end(&mut read);
    ended.map_err(|error| Broken::Call(ureq::Error::Io(error)))?;
    Ok(read)
}
