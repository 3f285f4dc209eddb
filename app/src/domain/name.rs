//! Names that reach Kubernetes: checked once, here, by the API server's own rules.

use uuid::Uuid;

/// Longest name of an instance. With the id's suffix it must stay under 53, Helm's limit for a release.
pub const MAX_NAME: usize = 40;
/// Longest slug of a team: `svcf-<slug>` must fit a namespace (63).
pub const MAX_SLUG: usize = 50;

/// Checks a DNS-1123 label of at most `max` characters.
///
/// # Errors
/// One sentence that says what is wrong and what would be right.
pub fn check_label(value: &str, max: usize) -> Result<(), String> {
    let ok = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if value.is_empty() {
        return Err("must not be empty".into());
    }
    if value.len() > max {
        return Err(format!(
            "must be at most {max} characters, this has {}",
            value.len()
        ));
    }
    if let Some(bad) = value.chars().find(|c| !ok(*c)) {
        return Err(format!("may contain only a-z, 0-9 and '-', not {bad:?}"));
    }
    if value.starts_with('-') || value.ends_with('-') {
        return Err("must start and end with a letter or a digit".into());
    }
    Ok(())
}

/// Checks the name of an instance. It must start with a letter, since a Service takes its name from it (DNS-1035).
///
/// # Errors
/// As [`check_label`].
pub fn check_instance_name(value: &str) -> Result<(), String> {
    check_label(value, MAX_NAME)?;
    if !value.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Err("must start with a letter".into());
    }
    Ok(())
}

/// The release of an instance: its name and eight characters of base 32 from the *end* of its id (the random part of a UUIDv7).
pub fn release_name(name: &str, id: Uuid) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let tail = id.as_u128() & ((1 << 40) - 1);
    let suffix: String = (0..8)
        .rev()
        .map(|i| ALPHABET[((tail >> (5 * i)) & 31) as usize] as char)
        .collect();
    format!("{name}-{suffix}")
}

/// The namespace of a team, from its slug when its first instance was asked for.
pub fn team_namespace(slug: &str) -> String {
    format!("svcf-{slug}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_api_servers_rules() {
        for good in ["a", "web", "my-db-2", &"a".repeat(40)] {
            assert_eq!(check_instance_name(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "-x",
            "x-",
            "..",
            "Web",
            "a_b",
            "ä",
            "1db",
            "a b",
            "x\n",
            &"a".repeat(41),
        ] {
            assert!(check_instance_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_release_fits_helms_limit_and_differs_by_id() {
        let one = release_name(&"a".repeat(MAX_NAME), Uuid::from_u128(1));
        let two = release_name(&"a".repeat(MAX_NAME), Uuid::from_u128(2));
        assert!(one.len() <= 53 && check_label(&one, 53).is_ok());
        assert_ne!(one, two);
        assert!(one.ends_with("-aaaaaaab"));
    }
}
