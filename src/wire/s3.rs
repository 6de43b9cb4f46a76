//! Answers of servers of the S3 protocol: a page of a list of objects, and refusals.
//!
//! They are XML of one fixed form, of which a few elements are read; an answer of another form is
//! none.

/// Page of a list.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Page {
    /// Objects: name and length.
    pub objects: Vec<(String, u64)>,
    /// Token for the next page; `None`: it is the last one.
    pub next: Option<String>,
}

/// Refusal.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct S3Error {
    /// Word such as `AccessDenied`; empty where the server has none.
    pub code: String,
    /// Sentence for people.
    pub message: String,
}

/// Reads a page; `None` for anything else, also for one that was cut.
pub fn page(text: &str) -> Option<Page> {
    let whole = text.split_once("<ListBucketResult")?.1;
    let whole = whole.trim_end().strip_suffix("</ListBucketResult>")?;
    let mut objects = Vec::new();
    let mut rest = whole;
    while let Some((_, after)) = rest.split_once("<Contents>") {
        let (object, after) = after.split_once("</Contents>")?;
        let bytes = element(object, "Size")?.trim().parse().ok()?;
        objects.push((unescape_xml(element(object, "Key")?), bytes));
        rest = after;
    }
    let next = match element(whole, "IsTruncated")?.trim() {
        "false" => None,
        "true" => Some(unescape_xml(element(whole, "NextContinuationToken")?)),
        _ => return None,
    };
    Some(Page { objects, next })
}

/// Reads a refusal, as far as it is one.
pub fn refusal(text: &str) -> S3Error {
    let found = |name| element(text, name).map(unescape_xml).unwrap_or_default();
    S3Error {
        code: found("Code"),
        message: found("Message"),
    }
}

/// Content of the first element of that name.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = text.split_once(&format!("<{name}>"))?;
    let (content, _) = after.split_once(&format!("</{name}>"))?;
    Some(content)
}

fn unescape_xml(text: &str) -> String {
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&apos;", "'"),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ];
    let text = text.trim().to_owned();
    let replaced = entities.iter();
    replaced.fold(text, |text, (entity, letter)| text.replace(entity, letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Amazon S3 and versitygw write it.
    const PAGE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix>k3s-</Prefix><KeyCount>2</KeyCount><MaxKeys>2</MaxKeys><IsTruncated>true</IsTruncated><NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=&amp;</NextContinuationToken>
<Contents><Key>k3s-a&amp;b</Key><LastModified>2026-11-23T00:00:00.000Z</LastModified><ETag>&#34;5d41&#34;</ETag><Size>5</Size><Owner><ID>x</ID></Owner><StorageClass>STANDARD</StorageClass></Contents>
<Contents><Key>k3s-c</Key><Size>0</Size></Contents>
</ListBucketResult>
"#;

    #[test]
    fn a_page_has_names_lengths_and_the_way_to_the_next() {
        let found = page(PAGE).unwrap();
        assert_eq!(
            found.objects,
            [("k3s-a&b".to_owned(), 5), ("k3s-c".to_owned(), 0)]
        );
        let next = "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=&";
        assert_eq!(found.next.as_deref(), Some(next));
        let last = PAGE.replace(">true<", ">false<");
        assert_eq!(page(&last).unwrap().next, None);
    }

    #[test]
    fn what_is_cut_or_something_else_is_no_page() {
        let cut = PAGE.get(..PAGE.len() / 2).unwrap();
        let lengthless = PAGE.replace("<Size>5</Size>", "");
        let endless = PAGE.replace("NextContinuationToken", "Token");
        for wrong in ["", "<html></html>", cut, &lengthless, &endless] {
            assert_eq!(page(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_refusal_has_a_word_and_a_sentence() {
        let text =
            "<Error><Code>AccessDenied</Code><Message>Access &quot;Denied&quot;</Message></Error>";
        let found = refusal(text);
        assert_eq!(
            (&*found.code, &*found.message),
            ("AccessDenied", "Access \"Denied\"")
        );
        assert_eq!(refusal("<html>busy</html>"), S3Error::default());
    }
}
