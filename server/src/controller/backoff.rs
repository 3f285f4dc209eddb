//! Pauses after errors, an object each (contract §1.5): 10 s, then more with jitter up to a minute; reset by success, by a change
//! of the object, and for all when the API recovers.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The first pause.
const FIRST: Duration = Duration::from_secs(10);
/// The longest.
const MOST: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
struct Failing {
    generation: Option<i64>,
    times: u32,
    outage: bool,
}

/// Objects that failed last time, by their key.
#[derive(Debug)]
pub struct Backoff<K>(Mutex<HashMap<K, Failing>>);

impl<K> Default for Backoff<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: std::hash::Hash + Eq + Clone> Backoff<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Failing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object failed: how long to wait. `jitter` is from 0 to 1.
    pub fn failed(&self, key: K, generation: Option<i64>, outage: bool, jitter: f64) -> Duration {
        let mut all = self.lock();
        let one = all.entry(key).or_insert(Failing {
            generation,
            times: 0,
            outage,
        });
        if one.generation != generation {
            one.times = 0;
        }
        *one = Failing {
            generation,
            times: one.times.saturating_add(1),
            outage,
        };
        if one.times == 1 {
            return FIRST;
        }
        let full = (FIRST * 2u32.saturating_pow(one.times - 1)).min(MOST);
        FIRST + (full - FIRST).mul_f64(jitter)
    }

    /// The object is well. Returns the others whose failures were the API's: it answers again, so they need not wait.
    pub fn succeeded(&self, key: &K) -> Vec<K> {
        let mut all = self.lock();
        all.remove(key);
        let waiting: Vec<K> = all
            .iter()
            .filter(|(_, f)| f.outage)
            .map(|(k, _)| k.clone())
            .collect();
        all.retain(|_, f| !f.outage);
        waiting
    }

    /// How many fail now.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether none fails.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, key: &K) {
        self.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_minute_and_are_reset() {
        let b = Backoff::default();
        let secs = |g: i64, jitter: f64| b.failed("a", Some(g), false, jitter).as_secs();
        assert_eq!(
            [
                secs(1, 1.0),
                secs(1, 1.0),
                secs(1, 1.0),
                secs(1, 1.0),
                secs(1, 1.0)
            ],
            [10, 20, 40, 60, 60]
        );
        assert_eq!(secs(1, 0.0), 10, "full jitter, never less than the first");
        assert_eq!(secs(2, 1.0), 10, "it changed");
        assert_eq!(secs(2, 1.0), 20);
        assert!(b.succeeded(&"a").is_empty());
        assert_eq!(secs(2, 1.0), 10);
    }

    #[test]
    fn the_first_answer_after_an_outage_wakes_all() {
        let b = Backoff::default();
        b.failed("a", None, true, 0.5);
        b.failed("b", None, true, 0.5);
        b.failed("c", None, false, 0.5);
        assert_eq!(b.succeeded(&"a"), ["b"]);
        assert_eq!(
            b.len(),
            1,
            "what is wrong with the object itself still waits"
        );
    }
}
