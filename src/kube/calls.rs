//! The agent's own calls: one object or one list at a time, typed, under one deadline and one cap.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use super::client::{Client, Identity, within};
use super::error::Error;
use crate::core::format::{is_unprintable, one_line};
use crate::net::Body;
use crate::wire::json::{self, Shape};
use crate::wire::kube::{List, Status, Version};

/// The time of one call, head and body. The API server gives up a list after 60 s; what takes half
/// of that on a loaded board is tried again later.
const CALL_WITHIN: Duration = Duration::from_secs(30);

/// The largest answer held in memory. Objects are at most 1.5 MiB in the datastore; a page of 500
/// Pod heads takes 1 to 2 MB.
const BODY_BYTES_MAX: usize = 4 << 20;

/// Pages of one list: 100,000 whole objects. A server that always names a next page must not keep
/// us for ever.
const PAGES_MAX: usize = 2000;

/// The longest text of the API that is repeated in an error.
const MESSAGE_CHARS_MAX: usize = 500;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Part of each object to request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Detail {
    /// The whole object.
    Whole,
    /// Its metadata only ([`HeadOnly`](crate::wire::kube::HeadOnly)).
    Head,
}

impl Detail {
    /// Objects of one page, so that a page fits into [`BODY_BYTES_MAX`]: a head takes 2 to 3 KB, a
    /// node with its list of images up to 30 KB, a Pod 5 to 15 KB.
    pub const fn page(self) -> usize {
        match self {
            Self::Whole => 50,
            Self::Head => 500,
        }
    }

    pub(super) const fn of_list(self) -> HeaderValue {
        match self {
            Self::Whole => JSON,
            Self::Head => HeaderValue::from_static(
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            ),
        }
    }

    pub(super) const fn of_object(self) -> HeaderValue {
        match self {
            Self::Whole => JSON,
            Self::Head => HeaderValue::from_static(
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            ),
        }
    }
}

/// Type of a patch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Patch {
    /// JSON merge patch.
    Merge,
    /// Server-side apply; the field manager is in the query.
    Apply,
}

/// Order in which an object and what it owns are deleted. Without one a Job leaves its Pods behind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Propagation {
    /// The object first.
    Background,
    /// The objects that it owns first: it is there until they are gone.
    Foreground,
}

impl Propagation {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
        }
    }
}

impl Client {
    /// Reads one object, or any other small JSON answer.
    ///
    /// # Errors
    /// As [`Client::send`], or what the API says.
    pub async fn get<T: Shape + Default>(&self, path: &str) -> Result<T, Error> {
        self.call(Method::GET, path, JSON, None).await
    }

    /// Reads an answer as it is, with a deadline of its own.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn read(&self, path: &str, limit: Duration) -> Result<Vec<u8>, Error> {
        self.read_as(&Identity::Agent, path, limit).await
    }

    /// Reads an answer as it is, as somebody else.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn read_as(
        &self,
        identity: &Identity,
        path: &str,
        limit: Duration,
    ) -> Result<Vec<u8>, Error> {
        let name = format!("GET {}", without_query(path));
        let request = request(Method::GET, path, JSON, None)?;
        let work = async {
            let response = self.send(request, identity, limit).await?;
            accepted(&name, response).await
        };
        within(limit, name.clone(), Box::pin(work)).await
    }

    /// Creates an object in the collection `path`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn create<T: Serialize, R: Shape + Default>(
        &self,
        path: &str,
        object: &T,
    ) -> Result<R, Error> {
        self.create_as(&Identity::Agent, path, object).await
    }

    /// Creates an object, or asks a question that is asked by creating one, as somebody else.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn create_as<T: Serialize, R: Shape + Default>(
        &self,
        identity: &Identity,
        path: &str,
        object: &T,
    ) -> Result<R, Error> {
        let content = Some(encoded(path, object, JSON)?);
        self.call_as(identity, Method::POST, path, JSON, content)
            .await
    }

    /// Replaces the object `path`; its resource version decides whether it is still the same.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn replace<T: Serialize, R: Shape + Default>(
        &self,
        path: &str,
        object: &T,
    ) -> Result<R, Error> {
        self.call(Method::PUT, path, JSON, Some(encoded(path, object, JSON)?))
            .await
    }

    /// Patches the object `path`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn patch<T: Serialize, R: Shape + Default>(
        &self,
        path: &str,
        meant: Patch,
        object: &T,
    ) -> Result<R, Error> {
        self.patch_as(&Identity::Agent, path, meant, object).await
    }

    /// Reads one object as somebody else.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_as<T: Shape + Default>(
        &self,
        identity: &Identity,
        path: &str,
    ) -> Result<T, Error> {
        self.call_as(identity, Method::GET, path, JSON, None).await
    }

    /// Patches the object `path` as somebody else.
    ///
    /// # Errors
    /// As [`Client::get`]; 409 where fields belong to others, or UID or resource version in the
    /// object are other ones.
    pub async fn patch_as<T: Serialize, R: Shape + Default>(
        &self,
        identity: &Identity,
        path: &str,
        meant: Patch,
        object: &T,
    ) -> Result<R, Error> {
        let kind = match meant {
            Patch::Merge => HeaderValue::from_static("application/merge-patch+json"),
            // JSON is YAML.
            Patch::Apply => HeaderValue::from_static("application/apply-patch+yaml"),
        };
        let content = Some(encoded(path, object, kind)?);
        self.call_as(identity, Method::PATCH, path, JSON, content)
            .await
    }

    /// Deletes the object `path` and what it owns as somebody else, if it still has this UID.
    ///
    /// # Errors
    /// As [`Client::delete_exactly`].
    pub async fn delete_exactly_as(
        &self,
        identity: &Identity,
        (path, uid): (&str, &str),
        policy: Propagation,
    ) -> Result<(), Error> {
        let options = serde_json::json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid},
            "propagationPolicy": policy.as_str(),
        });
        let content = Some(encoded(path, &options, JSON)?);
        let () = self
            .call_as(identity, Method::DELETE, path, JSON, content)
            .await?;
        Ok(())
    }

    /// Deletes the object `path`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn delete(&self, path: &str) -> Result<(), Error> {
        let () = self.call(Method::DELETE, path, JSON, None).await?;
        Ok(())
    }

    /// Deletes the object `path` if it still has this UID and resource version.
    ///
    /// # Errors
    /// As [`Client::get`]; 409 where it is another object by now, or was changed.
    pub async fn delete_version(
        &self,
        path: &str,
        (uid, version): (&str, &str),
    ) -> Result<(), Error> {
        let options = serde_json::json!({
            "apiVersion": "v1", "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": version},
        });
        let content = Some(encoded(path, &options, JSON)?);
        let () = self.call(Method::DELETE, path, JSON, content).await?;
        Ok(())
    }

    /// Deletes the object `path` if it still has this UID.
    ///
    /// # Errors
    /// As [`Client::get`]; 409 where it is another object by now.
    pub async fn delete_exactly(&self, path: &str, uid: &str) -> Result<(), Error> {
        let options = serde_json::json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid},
        });
        let content = Some(encoded(path, &options, JSON)?);
        let () = self.call(Method::DELETE, path, JSON, content).await?;
        Ok(())
    }

    /// Version of the API server: `v1.34.4+k3s1`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn version(&self) -> Result<String, Error> {
        let version: Version = self.get("/version").await?;
        Ok(version.git_version)
    }

    /// Reads a list page by page and gives each object to `each`, so that memory holds one page.
    /// Returns the resource version to watch from. `path` may have a query.
    ///
    /// # Errors
    /// As [`Client::get`]; 410 where the list took so long that its next page is gone.
    pub async fn list<T: Shape + Default>(
        &self,
        path: &str,
        detail: Detail,
        each: impl FnMut(T),
    ) -> Result<String, Error> {
        self.list_as(&Identity::Agent, path, detail, each).await
    }

    /// Reads a list page by page as somebody else.
    ///
    /// # Errors
    /// As [`Client::list`].
    pub async fn list_as<T: Shape + Default>(
        &self,
        identity: &Identity,
        path: &str,
        detail: Detail,
        mut each: impl FnMut(T),
    ) -> Result<String, Error> {
        let mut next = String::new();
        for _ in 0..PAGES_MAX {
            let page = page_path(path, detail, &next);
            let list: List<T> = self
                .call_as(identity, Method::GET, &page, detail.of_list(), None)
                .await?;
            list.items.into_iter().for_each(&mut each);
            next = list.metadata.next;
            if next.is_empty() {
                return Ok(list.metadata.resource_version);
            }
        }
        Err(Error::Undecodable {
            call: format!("GET {path}"),
            why: format!("the list has more than {PAGES_MAX} pages"),
        })
    }

    /// Reads one page of a list: the first, or the one that `next` asks for. `path` may have a
    /// query.
    ///
    /// # Errors
    /// As [`Client::get`]; 410 where the page is gone.
    pub async fn page_of<T: Shape + Default>(
        &self,
        path: &str,
        detail: Detail,
        next: &str,
    ) -> Result<List<T>, Error> {
        let page = page_path(path, detail, next);
        self.call(Method::GET, &page, detail.of_list(), None).await
    }

    async fn call<T: Shape + Default>(
        &self,
        method: Method,
        path: &str,
        accept: HeaderValue,
        content: Option<(HeaderValue, Vec<u8>)>,
    ) -> Result<T, Error> {
        self.call_as(&Identity::Agent, method, path, accept, content)
            .await
    }

    async fn call_as<T: Shape + Default>(
        &self,
        identity: &Identity,
        method: Method,
        path: &str,
        accept: HeaderValue,
        content: Option<(HeaderValue, Vec<u8>)>,
    ) -> Result<T, Error> {
        let call = format!("{method} {}", without_query(path));
        let request = request(method, path, accept, content)?;
        let answer = Box::pin(self.answer(&call, request, identity)).await?;
        json::shape(&answer).map_err(|error| undecodable(call, &error))
    }

    async fn answer(
        &self,
        call: &str,
        request: Request<Body>,
        identity: &Identity,
    ) -> Result<Vec<u8>, Error> {
        let work = async {
            let response = self.send(request, identity, CALL_WITHIN).await?;
            accepted(call, response).await
        };
        within(CALL_WITHIN, call.to_owned(), work).await
    }
}

fn page_path(path: &str, detail: Detail, next: &str) -> String {
    let separator = if path.contains('?') { '&' } else { '?' };
    let mut page = format!("{path}{separator}limit={}", detail.page());
    if !next.is_empty() {
        page.push_str("&continue=");
        page.push_str(&query_escaped(next));
    }
    page
}

fn undecodable(call: String, error: &serde_json::Error) -> Error {
    Error::Undecodable {
        call,
        why: error.to_string(),
    }
}

pub(super) fn without_query(path: &str) -> &str {
    path.split('?').next().unwrap_or_default()
}

pub(super) fn request(
    method: Method,
    path: &str,
    accept: HeaderValue,
    content: Option<(HeaderValue, Vec<u8>)>,
) -> Result<Request<Body>, Error> {
    let mut builder = Request::builder()
        .method(method)
        .uri(path)
        .header(ACCEPT, accept);
    let body = match content {
        None => Body::empty(),
        Some((kind, bytes)) => {
            builder = builder.header(CONTENT_TYPE, kind);
            Body::full(bytes)
        }
    };
    builder
        .body(body)
        .map_err(|error| Error::BadRequest(format!("{}: {error}", without_query(path))))
}

fn encoded<T: Serialize>(
    path: &str,
    object: &T,
    kind: HeaderValue,
) -> Result<(HeaderValue, Vec<u8>), Error> {
    let bytes = serde_json::to_vec(object)
        .map_err(|error| Error::BadRequest(format!("{}: {error}", without_query(path))))?;
    Ok((kind, bytes))
}

/// The body of a good answer; the API's own words for any other.
async fn accepted(call: &str, response: Response<Body>) -> Result<Vec<u8>, Error> {
    let status = response.status();
    let bytes = collected(call, response.into_body(), BODY_BYTES_MAX).await?;
    if status.is_success() {
        return Ok(bytes);
    }
    Err(refused(call, status.as_u16(), &bytes))
}

/// The answer of an API server, or of a proxy before it, that is not 2xx.
pub(super) fn refused(call: &str, status: u16, body: &[u8]) -> Error {
    let said: Status = json::shape(body).unwrap_or_else(|_not_json| Status {
        message: String::from_utf8_lossy(body).into_owned(),
        ..Status::default()
    });
    Error::Refused {
        call: call.to_owned(),
        status,
        reason: said
            .reason
            .chars()
            .filter(|c| !is_unprintable(*c))
            .take(100)
            .collect(),
        message: one_line(&said.message, MESSAGE_CHARS_MAX),
    }
}

/// Reads a body to its end, but no more than `bytes_max`.
pub(super) async fn collected(
    call: &str,
    mut body: Body,
    bytes_max: usize,
) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Error::Broken {
            call: call.to_owned(),
            why: error.to_string(),
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if bytes.len().saturating_add(data.len()) > bytes_max {
            return Err(Error::TooLarge {
                call: call.to_owned(),
                bytes_max,
            });
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// Characters that are escaped in a value of a query: all but the unreserved ones of RFC 3986.
const RESERVED: AsciiSet = NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Percent-escapes everything that could end a value of a query.
pub fn query_escaped(value: &str) -> String {
    utf8_percent_encode(value, &RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continue_token_cannot_end_the_query() {
        assert_eq!(query_escaped("a+b/c=&d é"), "a%2Bb%2Fc%3D%26d%20%C3%A9");
    }

    #[test]
    fn a_refusal_is_told_in_the_apis_words_without_control_characters() {
        let body = br#"{"kind":"Status","code":404,"reason":"NotFound","message":"pods \"a\u001b[2J\" not found"}"#;
        let error = refused("GET /x", 404, body);
        assert!(error.is_not_found());
        assert_eq!(
            error.to_string(),
            "GET /x: 404 NotFound: pods \"a [2J\" not found"
        );
        let html = refused("GET /x", 502, &b"<html>".repeat(1000));
        assert!(html.to_string().len() < 600);
    }
}
