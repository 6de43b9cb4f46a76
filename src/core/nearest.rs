//! Suggestions for misspelt words.

/// The word that was probably meant: at most a third of its letters differ.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Longer words are not typing errors, and the comparison is quadratic.
    if word.len() > 64 {
        return None;
    }
    known
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(1))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Letters that must be put in, taken out or replaced to make `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (line, left) in a.chars().enumerate() {
        let mut next = vec![line + 1];
        for ((right, above), pair) in b.iter().zip(row.iter().skip(1)).zip(&row) {
            let before = next.last().copied().unwrap_or_default();
            let replaced = pair + usize::from(left != *right);
            next.push(replaced.min(above + 1).min(before + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}
