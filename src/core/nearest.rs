//! Suggestions for misspelt words.

/// The word that was probably meant: at most a third of its characters differ.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Longer words are not typing errors, and the comparison is quadratic.
    if word.len() > 64 {
        return None;
    }
    known
        .map(|candidate| (strsim::levenshtein(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(1))
        .min()
        .map(|(_, candidate)| candidate)
}
