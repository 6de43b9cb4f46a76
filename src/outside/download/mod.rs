//! Downloads: short texts, and files of a known length and hash, which go on where they were cut.
//!
//! Only the address that is named is asked: a redirect is followed only for a file whose hash is
//! known, and only to https.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ring::digest::{Context, SHA256};
use smol::Timer;
use ureq::{
    Agent, Body,
    http::{
        HeaderMap, Request, Response, StatusCode,
        header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderValue, IF_RANGE, LOCATION, RANGE},
    },
};

use super::transport::{Limits, Transport, dial_error};
use crate::{
    core::{
        format::hex,
        url::{Security, Url},
    },
    error::{Error, Result, Retry},
    executor, files,
};

/// Deadline for the next bytes, and for all of them.
const LIMITS: Limits = Limits {
    body: Some(Duration::from_secs(3600)),
    read: Some(Duration::from_secs(30)),
};
/// Attempts in a row that get nowhere before a download is given up.
const ATTEMPTS: u32 = 4;
/// Bytes a second below which an attempt gets nowhere: a server that sends a byte now and then
/// would keep an update away for months.
const RATE_MIN: u64 = 512;
const PAUSE: Duration = Duration::from_secs(1);
const PIECE: usize = 64 * 1024;
/// GitHub sends on once.
const REDIRECTS_MAX: usize = 4;

/// Hears of each tenth of a file: the bytes so far, and all.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// An address, and the setting that it comes from, which errors name.
#[derive(Clone, Debug)]
pub struct Address {
    /// The address.
    pub url: String,
    pub setting: &'static str,
}

/// A file to download.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Address to download from.
    pub from: Address,
    /// Private file that gets it. What an earlier attempt left there is used.
    pub to: PathBuf,
    pub length: Length,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// Treatment of redirects.
    pub redirects: Redirects,
}

/// Length of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Length {
    /// This one, by a signed list.
    Exact(u64),
    /// The server's word, up to this.
    AtMost(u64),
}

impl Length {
    fn max(self) -> u64 {
        match self {
            Self::Exact(bytes) | Self::AtMost(bytes) => bytes,
        }
    }
}

/// Treatment of redirects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Redirects {
    /// They are errors.
    Refused,
    /// They are followed to addresses with https: the hash says whether it is the file.
    ToHttps,
}

/// Downloads a short text.
///
/// # Errors
/// It is not there, or is longer than `bytes_max`.
pub async fn text(transport: &Transport, from: &Address, bytes_max: usize) -> Result<Vec<u8>> {
    let calls = transport.calls(LIMITS);
    let (agent, from) = (calls.agent.clone(), from.clone());
    executor::unblock(move || {
        let of = &from.url;
        let response = ask(&agent, Request::get(of), of)?;
        if response.status() != StatusCode::OK {
            return Err(refused(&response, &from));
        }
        let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX);
        let mut read = Vec::new();
        let mut reader = response.into_body().into_reader();
        let ended = reader.by_ref().take(limit).read_to_end(&mut read);
        ended.map_err(|error| cannot(of).because(&error).retry(Retry::Soon))?;
        match reader.read(&mut [0]) {
            Ok(0) => Ok(read),
            Ok(_) | Err(_) => Err(cannot(of).why(format!("it is longer than {bytes_max} bytes"))),
        }
    })
    .await
}

/// Downloads a file. Dropping the future ends it, and another call goes on.
///
/// # Errors
/// It could not be had. A file of the wrong length or hash is removed.
pub async fn file(transport: &Transport, wanted: &Wanted, progress: &Progress) -> Result<()> {
    file_within(transport, wanted, progress, LIMITS).await
}

async fn file_within(
    transport: &Transport,
    wanted: &Wanted,
    progress: &Progress,
    limits: Limits,
) -> Result<()> {
    let mut tag = None;
    let mut pause = PAUSE;
    let (mut idle, mut length) = (0, 0);
    loop {
        let began = (transport.clock)();
        let calls = transport.calls(limits);
        let (agent, job, progress) = (calls.agent.clone(), wanted.clone(), Arc::clone(progress));
        let attempt = executor::unblock(move || {
            let mut attempt = Attempt::begin(&job, tag)?;
            let result = attempt.run(&agent, &*progress);
            Ok::<_, Error>((result, attempt.tag, attempt.bytes))
        });
        let (result, seen, bytes) = attempt.await?;
        let Err(error) = result else {
            return Ok(());
        };
        if error.retry == Retry::Never {
            return Err(error);
        }
        let seconds = (transport.clock)().since(began).as_secs().max(1);
        let is_too_slow = bytes.saturating_sub(length) / seconds < RATE_MIN;
        idle = if is_too_slow { idle + 1 } else { 0 };
        if idle >= ATTEMPTS {
            return Err(error);
        }
        (tag, length) = (seen, bytes);
        log::info!("{}", error.sentence());
        Timer::after(pause).await;
        pause = pause.saturating_mul(2).min(Duration::from_secs(30));
    }
}

/// One attempt, on top of what is there.
struct Attempt<'a> {
    wanted: &'a Wanted,
    file: File,
    hash: Context,
    bytes: u64,
    /// Length of the whole, as far as it is known.
    all: Option<u64>,
    was_resumed: bool,
    tag: Option<HeaderValue>,
}

impl<'a> Attempt<'a> {
    fn begin(wanted: &'a Wanted, tag: Option<HeaderValue>) -> Result<Self> {
        let options = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(files::PRIVATE)
            .custom_flags(nix::fcntl::OFlag::O_NOFOLLOW.bits())
            .open(&wanted.to);
        let file = options.map_err(|error| unwritable(&wanted.to, &error))?;
        let mut attempt = Self {
            wanted,
            file,
            hash: Context::new(&SHA256),
            bytes: 0,
            all: match wanted.length {
                Length::Exact(bytes) => Some(bytes),
                Length::AtMost(_) => None,
            },
            was_resumed: false,
            tag,
        };
        let there = attempt.file.metadata();
        let there = there.map_err(|error| unwritable(&wanted.to, &error))?.len();
        if there > wanted.length.max() {
            attempt.restart()?;
        }
        let mut piece = vec![0; PIECE];
        loop {
            let read = attempt.file.read(&mut piece);
            let read = read.map_err(|error| unwritable(&wanted.to, &error))?;
            if read == 0 {
                break;
            }
            attempt.take(piece.get(..read).unwrap_or_default());
        }
        attempt.was_resumed = attempt.bytes > 0;
        Ok(attempt)
    }

    fn run(&mut self, agent: &Agent, progress: &dyn Fn(u64, u64)) -> Result<()> {
        let is_whole = match self.all {
            Some(all) => self.bytes >= all,
            None => self.found() == self.wanted.sha256,
        };
        if !is_whole {
            self.fetch(agent, progress)?;
        }
        let synced = self.file.sync_all();
        synced.map_err(|error| unwritable(&self.wanted.to, &error))?;
        let found = self.found();
        if found == self.wanted.sha256 {
            return Ok(());
        }
        self.restart()?;
        let wanted = &self.wanted.sha256;
        let error = self
            .cannot()
            .why(format!("its SHA-256 is {found}, not {wanted}"));
        let error =
            error.fix("the server, or a proxy in front of it, serves changed files; the download was discarded");
        // What was there before may be of another release.
        let retry = if self.was_resumed {
            Retry::Soon
        } else {
            Retry::Never
        };
        Err(error.retry(retry))
    }

    fn found(&self) -> String {
        hex(self.hash.clone().finish().as_ref())
    }

    fn fetch(&mut self, agent: &Agent, progress: &dyn Fn(u64, u64)) -> Result<()> {
        let from = &self.wanted.from;
        let response = self.answer(agent)?;
        match response.status() {
            StatusCode::OK => {
                self.restart()?;
                let length = header(response.headers(), CONTENT_LENGTH.as_str());
                self.measure(length.and_then(|text| text.parse().ok()))?;
            }
            StatusCode::PARTIAL_CONTENT => {
                let begin = format!("bytes {}-", self.bytes);
                let range = header(response.headers(), CONTENT_RANGE.as_str());
                let Some(range) = range.filter(|range| range.starts_with(&begin)) else {
                    self.restart()?;
                    let error = self.cannot().why("the server answered with another part");
                    return Err(error.retry(Retry::Soon));
                };
                let all = range.rsplit('/').next();
                self.measure(all.and_then(|text| text.parse().ok()))?;
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                self.restart()?;
                return Err(refused(&response, from).retry(Retry::Soon));
            }
            _ => return Err(refused(&response, from)),
        }
        self.tag = response.headers().get(ETAG).cloned();
        self.read(response.into_body(), progress)
    }

    /// Takes down the length of the whole in the server's words.
    fn measure(&mut self, all: Option<u64>) -> Result<()> {
        match (self.wanted.length, all) {
            (Length::Exact(wanted), Some(all)) if all != wanted => Err(self.wrong_length(all)),
            (Length::AtMost(most), Some(all)) if all > most => Err(self.wrong_length(all)),
            (Length::AtMost(_), _) => {
                self.all = all;
                Ok(())
            }
            (Length::Exact(_), _) => Ok(()),
        }
    }

    /// The first answer that is no redirect to be followed.
    fn answer(&self, agent: &Agent) -> Result<Response<Body>> {
        let mut url = self.wanted.from.url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let mut request = Request::get(&url);
            if self.bytes > 0 {
                request = request.header(RANGE, format!("bytes={}-", self.bytes));
                if let Some(tag) = &self.tag {
                    request = request.header(IF_RANGE, tag);
                }
            }
            let response = ask(agent, request, &url)?;
            if !response.status().is_redirection() || self.wanted.redirects == Redirects::Refused {
                return Ok(response);
            }
            let to = header(response.headers(), LOCATION.as_str()).unwrap_or_default();
            let next = Url::parse_exact(&url).and_then(|url| url.redirected(to));
            url = match next {
                Ok(next) if next.security == Security::Tls => next.to_string(),
                _ => return Err(self.redirected_error(to)),
            };
        }
        Err(self.cannot().why("too many redirects"))
    }

    fn redirected_error(&self, to: &str) -> Error {
        let why = format!("the server redirects to {to:?}, which is not https");
        cannot(&self.wanted.from.url).why(why).fix(format!(
            "check {} and the network in between: networks with a login page redirect like this",
            self.wanted.from.setting
        ))
    }

    fn read(&mut self, body: Body, progress: &dyn Fn(u64, u64)) -> Result<()> {
        let mut reader = body.into_reader();
        let mut piece = vec![0; PIECE];
        loop {
            let read = reader.read(&mut piece);
            let read = read.map_err(|error| self.cut().because(&error))?;
            if read == 0 {
                break;
            }
            let part = piece.get(..read).unwrap_or_default();
            let tenth = self.tenth();
            self.take(part);
            if self.bytes > self.all.unwrap_or_else(|| self.wanted.length.max()) {
                let bytes = self.bytes;
                self.restart()?;
                return Err(self.wrong_length(bytes));
            }
            let written = self.file.write_all(part);
            written.map_err(|error| unwritable(&self.wanted.to, &error))?;
            if let Some(all) = self.all.filter(|_| self.tenth() > tenth) {
                progress(self.bytes, all);
            }
        }
        if self.all.is_some_and(|all| self.bytes < all) {
            return Err(self.cut());
        }
        Ok(())
    }

    fn take(&mut self, part: &[u8]) {
        self.hash.update(part);
        let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(length);
    }

    fn tenth(&self) -> u64 {
        let tens = self.bytes.saturating_mul(10);
        self.all.and_then(|all| tens.checked_div(all)).unwrap_or(0)
    }

    /// Empties the file.
    fn restart(&mut self) -> Result<()> {
        let emptied = self
            .file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(|error| unwritable(&self.wanted.to, &error))?;
        (self.hash, self.bytes) = (Context::new(&SHA256), 0);
        Ok(())
    }

    fn cannot(&self) -> Error {
        cannot(&self.wanted.from.url)
    }

    fn cut(&self) -> Error {
        let all = self.all.map_or(String::new(), |all| format!(" of {all}"));
        let error = self.cannot();
        error
            .why(format!("it ended after {}{all} bytes", self.bytes))
            .retry(Retry::Soon)
    }

    fn wrong_length(&self, bytes: u64) -> Error {
        let wanted = match (self.wanted.length, self.all) {
            (Length::Exact(all), _) | (Length::AtMost(_), Some(all)) => format!("not {all}"),
            (Length::AtMost(most), None) => format!("{most} are allowed"),
        };
        self.cannot()
            .why(format!("it has {bytes} bytes or more, {wanted}"))
    }
}

fn ask(agent: &Agent, request: ureq::http::request::Builder, url: &str) -> Result<Response<Body>> {
    let request = request.body(());
    let request = request.map_err(|error| cannot(url).because(&error))?;
    agent
        .run(request)
        .map_err(|error| match dial_error(&error) {
            Some(dial) => Error::from(dial).within(cannot(url).what),
            None => cannot(url).because(&error).retry(Retry::Soon),
        })
}

fn refused(response: &Response<Body>, from: &Address) -> Error {
    let status = response.status();
    let setting = from.setting;
    let error = cannot(&from.url).why(format!("the server answered HTTP {status}"));
    match status.as_u16() {
        300..=399 => error
            .why("redirects are not followed")
            .fix(format!("set {setting} to the address where the files are")),
        408 | 425 | 429 | 500..=599 => error.retry(Retry::Soon),
        _ => error.fix(format!(
            "check {setting}, and whether there is such a release"
        )),
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn cannot(url: &str) -> Error {
    Error::new(format!("cannot download {url}"))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Error {
    files::explain(format!("cannot write {}", path.display()), error)
}

#[cfg(test)]
mod tests;
