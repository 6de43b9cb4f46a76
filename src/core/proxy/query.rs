//! Queries: kept as they were written, and read as the API server reads them.

use std::borrow::Cow;

use super::{
    Refusal,
    path::{escape, is_path_char, push},
    refuse,
};

/// The longest query, in bytes after escaping.
const MAX_QUERY_BYTES: usize = 32 * 1024;
/// The most fields. Go gives up all of them beyond 10,000, so that a flag could be there and not be
/// seen; a long `exec` has a hundred.
const MAX_QUERY_FIELDS: usize = 1000;

/// A raw query that is safe to send: existing escapes and the order of its fields stay,
/// characters that no query may hold are escaped.
pub fn query(raw: &str) -> Result<String, Refusal> {
    let mut text = String::with_capacity(raw.len());
    for byte in raw.bytes() {
        if byte < b' ' || byte == 0x7f {
            return refuse("invalid query string: control character");
        }
        push(&mut text, byte, is_path_char(byte) || b"?%".contains(&byte));
    }
    if text.len() > MAX_QUERY_BYTES {
        return refuse(format!(
            "invalid query string: longer than {MAX_QUERY_BYTES} bytes"
        ));
    }
    if text.split('&').count() > MAX_QUERY_FIELDS {
        return refuse(format!(
            "invalid query string: more than {MAX_QUERY_FIELDS} fields"
        ));
    }
    Ok(text)
}

/// The first value of a field, decoded: the API server looks at no other. As Go reads it: a field
/// with a `;` or a broken escape is none.
pub fn query_value<'a>(query: &'a str, name: &str) -> Option<Cow<'a, [u8]>> {
    query_values(query, name).next()
}

/// All values of a field, in their order, read like [`query_value`].
pub fn query_values<'a>(query: &'a str, name: &str) -> impl Iterator<Item = Cow<'a, [u8]>> {
    query
        .split('&')
        .filter(|field| !field.is_empty() && !field.contains(';'))
        .filter_map(move |field| {
            let (key, value) = field.split_once('=').unwrap_or((field, ""));
            let is_wanted = *decoded(key)? == *name.as_bytes();
            is_wanted.then(|| decoded(value)).flatten()
        })
}

/// Returns whether a field of a query is set as the API server reads it: present and neither
/// `false` nor `0`.
pub fn query_flag(query: &str, name: &str) -> bool {
    query_value(query, name)
        .is_some_and(|value| !value.eq_ignore_ascii_case(b"false") && *value != *b"0")
}

/// `None` where an escape is broken.
fn decoded(text: &str) -> Option<Cow<'_, [u8]>> {
    if !text.contains(['%', '+']) {
        return Some(Cow::Borrowed(text.as_bytes()));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        let (byte, tail) = match byte {
            b'%' => escape(tail)?,
            b'+' => (b' ', tail),
            _ => (*byte, tail),
        };
        bytes.push(byte);
        rest = tail;
    }
    Some(Cow::Owned(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_sent_as_it_was_written() {
        for (raw, wanted) in [
            ("b=2&a=1;c&flag", Some("b=2&a=1;c&flag")),
            ("fieldSelector=a%3Db&x=/?", Some("fieldSelector=a%3Db&x=/?")),
            ("q=a b\"<ü#", Some("q=a%20b%22%3C%C3%BC%23")),
            ("a\r\nb", None),
        ] {
            assert_eq!(query(raw).ok().as_deref(), wanted, "{raw}");
        }
        assert!(query(&"&".repeat(999)).is_ok());
        assert!(query(&"&".repeat(1000)).is_err());
        assert!(query(&"a".repeat(32 * 1024 + 1)).is_err());
    }

    #[test]
    fn flags_are_read_as_the_api_server_reads_them() {
        for (query, wanted) in [
            ("watch=true", true),
            ("watch=1&x=2", true),
            ("watch", true),
            ("watch=", true),
            ("w%61tch=true", true),
            ("watch=true&watch=false", true),
            ("watch=%66alse", false),
            ("watch=false", false),
            ("watch=FALSE", false),
            ("watch=0", false),
            ("watch=0&watch=1", false),
            ("watch=1;x=2", false),
            ("watch=%zz", false),
            ("watching=true", false),
            ("Watch=true", false),
            ("", false),
        ] {
            assert_eq!(query_flag(query, "watch"), wanted, "{query}");
        }
        let value = query_value("a=1&a%20b=c+d%2B&a b=2", "a b");
        assert_eq!(value.as_deref(), Some(b"c d+".as_slice()));
    }
}
