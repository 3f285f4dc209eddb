//! What is wrong with a catalog, and where.

use std::{fmt, path::PathBuf};

/// One fault with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; 0 when the whole file is meant.
    pub line: u64,
    /// What is wrong and what would be right.
    pub detail: String,
}

impl Fault {
    /// A fault of a whole file.
    pub fn file(file: impl Into<PathBuf>, detail: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            line: 0,
            detail: detail.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file.display(), self.detail),
            line => write!(f, "{}:{line}: {}", self.file.display(), self.detail),
        }
    }
}

/// The line of a key in YAML text, walking down a path of keys by indentation; of the deepest key that is found.
pub fn line_of(text: &str, path: &[&str]) -> u64 {
    let (mut from, mut found) = (0, 0);
    for key in path {
        let here = text.lines().enumerate().skip(from).find(|(_, line)| {
            let line = line.trim_start().trim_start_matches("- ");
            line.strip_prefix(key)
                .or_else(|| line.trim_start_matches('"').strip_prefix(key))
                .is_some_and(|rest| rest.trim_start_matches('"').trim_start().starts_with(':'))
        });
        let Some((index, _)) = here else { break };
        (from, found) = (index + 1, index as u64 + 1);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::line_of;

    #[test]
    fn the_deepest_key_found_names_the_line() {
        let text = "type: x\nparameters:\n  properties:\n    size:\n      type: integer\n";
        assert_eq!(line_of(text, &["parameters", "properties", "size"]), 4);
        assert_eq!(line_of(text, &["parameters", "nowhere"]), 2);
        assert_eq!(line_of(text, &["nowhere"]), 0);
    }
}
