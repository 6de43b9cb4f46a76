//! os-release(5): assignments in a subset of what a shell reads.

/// Value of a variable; `None` where it is missing or empty.
pub fn value(text: &str, name: &str) -> Option<String> {
    let assigned = |line: &str| {
        let value = line.strip_prefix(name)?.strip_prefix('=')?;
        Some(unquoted(value.trim()))
    };
    let value = text.lines().find_map(assigned)?;
    (!value.is_empty()).then_some(value)
}

fn unquoted(value: &str) -> String {
    let inner = ['"', '\'']
        .into_iter()
        .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote))
        .unwrap_or(value);
    let mut plain = String::new();
    let mut is_escaped = false;
    for c in inner.chars() {
        if c == '\\' && !is_escaped {
            is_escaped = true;
        } else {
            is_escaped = false;
            plain.push(c);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_loses_its_quotes_and_backslashes_once() {
        let text = "PRETTY_NAME=\"Bob\\\"s \\\\ Linux\"\nNAME='x y'\nID=debian \nVERSION_ID=\"\"\n";
        let value = |name| value(text, name);
        assert_eq!(value("PRETTY_NAME").as_deref(), Some(r#"Bob"s \ Linux"#));
        assert_eq!(value("NAME").as_deref(), Some("x y"));
        assert_eq!(value("ID").as_deref(), Some("debian"));
        assert_eq!((value("VERSION_ID"), value("ID_LIKE")), (None, None));
    }
}
