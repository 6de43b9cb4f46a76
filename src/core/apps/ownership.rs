//! Ownership of objects in the cluster: free, ours, or somebody else's; and refusals that the
//! account's rights are the reason of.

use serde_json::Value;

use super::{App, InventoryEntry, MANAGER};

/// Head of an object that exists.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    pub uid: &'a str,
    /// Nonce that it carries; empty where it carries none.
    pub nonce: &'a str,
}

/// Ownership of an object of an app.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ownership<'a> {
    /// Nothing is there: the object is created, which fails if somebody was faster.
    Free,
    /// Our object, with its UID.
    Ours(&'a str),
    /// An object of somebody else.
    Others,
}

impl App {
    /// Judges whose object stands where this app has one. Ours has the UID of the
    /// inventory, or carries the nonce that was noted for it alone: a power cut may come between
    /// the write and the note of its UID.
    pub fn ownership<'a>(&self, entry: &InventoryEntry, found: Option<Head<'a>>) -> Ownership<'a> {
        let Some(found) = found else {
            return Ownership::Free;
        };
        let is_ours = self.uid(entry).is_some_and(|uid| uid == found.uid)
            || self.nonce(entry).is_some_and(|nonce| nonce == found.nonce);
        if is_ours {
            Ownership::Ours(found.uid)
        } else {
            Ownership::Others
        }
    }
}

/// Managed fields of an object that we created, as if it had been applied, so that a field that a
/// later version no longer has goes away; `None`: they are so already.
pub fn as_applied(managed: &[Value]) -> Option<Vec<Value>> {
    let text = |entry: &Value, name: &str| {
        let text = entry.get(name).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let is = |entry: &Value, operation: &str| {
        text(entry, "manager") == MANAGER
            && text(entry, "operation") == operation
            && text(entry, "subresource").is_empty()
    };
    let created = managed.iter().position(|entry| is(entry, "Update"))?;
    let is_applied = managed.iter().any(|entry| is(entry, "Apply"));
    let mut fields = managed.to_vec();
    let mut entry = fields.remove(created);
    if let (false, Value::Object(entry)) = (is_applied, &mut entry) {
        entry.insert("operation".to_owned(), Value::String("Apply".to_owned()));
        fields.push(Value::Object(entry.clone()));
    }
    Some(fields)
}

/// Verb, resource and group that the API server denies for want of rights; `None`: it refuses for
/// another reason, such as a quota or a policy.
pub fn denied(message: &str) -> Option<(&str, &str, &str)> {
    let (_, rest) = message.split_once("\" cannot ")?;
    let (verb, rest) = rest.split_once(" resource \"")?;
    let (resource, rest) = rest.split_once('"')?;
    let group = rest.strip_prefix(" in API group \"");
    let group = group.and_then(|rest| rest.split_once('"'));
    Some((verb, resource, group.map_or("", |(group, _)| group)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::apps::parse;
    use serde_json::json;

    #[test]
    fn an_object_is_ours_by_its_uid_or_by_the_nonce_that_was_noted_for_it() {
        let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
        let both = format!("{map}---\n{}", map.replace("a}", "b}"));
        let manifests = parse(&both, Some("shop")).unwrap();
        let [first, second] = [
            InventoryEntry::of(&manifests[0]),
            InventoryEntry::of(&manifests[1]),
        ];
        let mut app = App::default();
        let head = |uid, nonce| Some(Head { uid, nonce });
        assert_eq!(app.ownership(&first, None), Ownership::Free);
        // Labels and annotations of others give nothing.
        assert_eq!(app.ownership(&first, head("u1", "n1")), Ownership::Others);
        app.plan(&manifests, ["n1", "n2"].map(str::to_owned));
        assert_eq!(
            app.ownership(&first, head("u1", "n1")),
            Ownership::Ours("u1")
        );
        // The nonce of an object that everybody sees is worth nothing for the next one.
        assert_eq!(app.ownership(&second, head("u2", "n1")), Ownership::Others);
        assert_eq!(app.ownership(&second, head("u2", "")), Ownership::Others);
        app.record_uid(&first, "u1");
        app.clear_nonces();
        assert_eq!(app.ownership(&first, head("u1", "")), Ownership::Ours("u1"));
        // Nobody knows yet whether the second one was created.
        assert_eq!(
            app.ownership(&second, head("u2", "n2")),
            Ownership::Ours("u2")
        );
        // It was replaced by somebody else's.
        assert_eq!(app.ownership(&first, head("u2", "n1")), Ownership::Others);
        assert_eq!(app.ownership(&first, head("u2", "")), Ownership::Others);
        assert_eq!(app.ownership(&first, None), Ownership::Free);
    }

    #[test]
    fn what_was_created_counts_as_applied() {
        let of = |manager: &str, operation: &str| json!({"manager": manager, "operation": operation, "fieldsV1": {"f:data": {}}});
        let created = [of("kubectl", "Update"), of(MANAGER, "Update")];
        let applied = [of("kubectl", "Update"), of(MANAGER, "Apply")];
        assert_eq!(as_applied(&created).unwrap(), applied);
        assert_eq!(as_applied(&applied), None);
        let both = [of(MANAGER, "Update"), of(MANAGER, "Apply")];
        assert_eq!(as_applied(&both).unwrap(), [of(MANAGER, "Apply")]);
    }

    #[test]
    fn want_of_rights_is_told_from_other_refusals() {
        let message = r#"pods is forbidden: User "system:serviceaccount:pipeops-system:pipeops-apps" cannot list resource "pods" in API group "" in the namespace "shop""#;
        assert_eq!(denied(message), Some(("list", "pods", "")));
        let custom = message.replace("group \"\"", "group \"example.com\"");
        assert_eq!(denied(&custom), Some(("list", "pods", "example.com")));
        for other in [
            r#"pods "a" is forbidden: exceeded quota: small, requested: pods=1"#,
            r#"admission webhook "x" denied the request: it cannot be"#,
        ] {
            assert_eq!(denied(other), None);
        }
    }
}
