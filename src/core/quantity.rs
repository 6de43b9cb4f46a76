//! Quantities of Kubernetes: `3800m`, `8Gi`, `1.5`, `1e3`.

/// A quantity in thousandths. `None` for what is none, below zero or without bounds.
pub fn milli(text: &str) -> Option<u64> {
    let end = text.find(|sign: char| !sign.is_ascii_digit() && sign != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    if !number.contains(|sign: char| sign.is_ascii_digit()) {
        return None;
    }
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    // Thousandths of what has more digits are rounded down.
    let part: String = part.chars().chain("000".chars()).take(3).collect();
    let thousandths: u128 = format!("{whole}{part}").parse().ok()?;
    let (factor, divisor) = scale(suffix)?;
    u64::try_from(thousandths.checked_mul(factor)? / divisor).ok()
}

/// A quantity in whole units.
pub fn whole(text: &str) -> Option<u64> {
    // By way of thousandths: 18 PB is more than any machine has.
    milli(text).map(|milli| milli / 1000)
}

/// Multiplier and divisor of a suffix.
fn scale(suffix: &str) -> Option<(u128, u128)> {
    let power = |base: u128, exponent| Some((base.checked_pow(exponent)?, 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1000)),
        "k" => power(1000, 1),
        "M" => power(1000, 2),
        "G" => power(1000, 3),
        "T" => power(1000, 4),
        "P" => power(1000, 5),
        "Ki" => power(1024, 1),
        "Mi" => power(1024, 2),
        "Gi" => power(1024, 3),
        "Ti" => power(1024, 4),
        "Pi" => power(1024, 5),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            power(10, exponent.parse().ok()?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, thousandths) in [
            ("4", Some(4000)),
            ("3800m", Some(3800)),
            ("1.5", Some(1500)),
            ("0.1234", Some(123)),
            ("1e3", Some(1_000_000)),
            ("250000000n", Some(250)),
            ("2k", Some(2_000_000)),
        ] {
            assert_eq!(milli(text), thousandths, "{text}");
        }
        assert_eq!(whole("8127512Ki"), Some(8_322_572_288));
        assert_eq!(whole("16Gi"), Some(17_179_869_184));
        for text in [
            "",
            "-1",
            "Gi",
            "1.2.3",
            "1Xi",
            "1e99",
            "99999999999999999999999Pi",
            "ä",
        ] {
            assert_eq!(whole(text), None, "{text}");
        }
    }
}
