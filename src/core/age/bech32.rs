//! Bech32, as BIP 173 specifies it: bytes as text with a prefix, and a sum that finds every
//! mistyped letter.

const LETTERS: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";
/// Letters of the sum.
const SUM: usize = 6;
/// The polynomial of the sum, multiplied by the five bits that leave it.
const GENERATOR: [u32; 5] = [
    0x3b6a_57b2,
    0x2650_8e6d,
    0x1ea1_19fa,
    0x3d42_33dd,
    0x2a14_62b3,
];

/// The prefix in lower case, and the bytes.
pub(super) fn decode(text: &str) -> Option<(String, Vec<u8>)> {
    let small = text.to_ascii_lowercase();
    if text != small && text != text.to_ascii_uppercase() {
        return None;
    }
    let (prefix, letters) = small.rsplit_once('1')?;
    let is_plain = prefix.bytes().all(|byte| byte.is_ascii_graphic());
    if prefix.is_empty() || !is_plain || letters.len() < SUM {
        return None;
    }
    let fives = letters.bytes().map(|letter| {
        let place = LETTERS.iter().position(|other| *other == letter);
        place.and_then(|place| u8::try_from(place).ok())
    });
    let fives: Vec<u8> = fives.collect::<Option<_>>()?;
    let high = prefix.bytes().map(|byte| byte >> 5);
    let low = prefix.bytes().map(|byte| byte & 31);
    let all = high.chain([0]).chain(low).chain(fives.iter().copied());
    if all.fold(1, next) != 1 {
        return None;
    }
    let (fives, _sum) = fives.split_at_checked(fives.len() - SUM)?;
    Some((prefix.to_owned(), eights(fives)?))
}

fn next(sum: u32, five: u8) -> u32 {
    let top = sum >> 25;
    let shifted = (sum & 0x1ff_ffff) << 5 ^ u32::from(five);
    let terms = GENERATOR.iter().enumerate();
    terms
        .filter(|(bit, _)| top >> bit & 1 == 1)
        .fold(shifted, |sum, (_, term)| sum ^ term)
}

/// Groups of five bits as bytes. What is left over must be short and zero.
fn eights(fives: &[u8]) -> Option<Vec<u8>> {
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0_u16, 0_u32);
    for five in fives {
        held = held << 5 | u16::from(*five);
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits).ok()?);
            held &= (1 << bits) - 1;
        }
    }
    (bits < 5 && held == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of BIP 173.
    #[test]
    fn the_texts_of_the_specification_are_read_and_wrong_ones_are_not() {
        for good in ["A12UEL5L", "a12uel5l", "?1ezyfcl"] {
            assert!(decode(good).is_some(), "{good}");
        }
        let (prefix, bytes) = decode("abcdef1qpzry9x8gf2tvdw0s3jn54khce6mua7lmqqqxw").unwrap();
        assert_eq!((&*prefix, bytes.len()), ("abcdef", 20));
        for wrong in [
            "",
            "1",
            "pzry9x0s0muk",
            "1pzry9x0s0muk",
            "x1b4n0q5v",
            "li1dgmt3",
            "A1G7SGD8",
            "10a06t8",
            "1qzzfhee",
            "A12uEL5L",
        ] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
