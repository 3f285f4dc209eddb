//! The only randomness.

use data_encoding::BASE64URL_NOPAD;
use rand::{Rng, TryRngCore, rngs::OsRng};
use uuid::Uuid;

/// A new id: UUIDv7, so that ids sort by age.
#[allow(clippy::disallowed_methods, reason = "the one place")]
pub fn new_id() -> Uuid {
    Uuid::now_v7()
}

/// 256 random bits as 43 URL-safe characters: for links, tokens and keys.
pub fn new_secret() -> String {
    let mut bytes = [0u8; 32];
    OsRng.unwrap_err().fill_bytes_from(&mut bytes);
    BASE64URL_NOPAD.encode(&bytes)
}

/// `length` characters drawn evenly from `alphabet`.
pub fn new_password(length: usize, alphabet: &[char]) -> String {
    let mut rng = OsRng.unwrap_err();
    (0..length)
        .map(|_| alphabet[rng.random_range(0..alphabet.len())])
        .collect()
}

/// A random factor in `0.0..1.0`, for jitter.
pub fn jitter() -> f64 {
    rand::rng().random()
}

trait FillFrom {
    fn fill_bytes_from(&mut self, bytes: &mut [u8]);
}

impl<R: rand::RngCore> FillFrom for R {
    fn fill_bytes_from(&mut self, bytes: &mut [u8]) {
        self.fill_bytes(bytes);
    }
}
