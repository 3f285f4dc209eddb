//! Pauses after errors, an object each (contract §1.5): 10 s, then more with jitter up to a minute; reset by success and by a change of
//! the object. When the API recovers, those whose failures were its own need not wait out their pauses.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// The first pause; nothing is tried again sooner, whatever others do.
const FIRST: Duration = Duration::from_secs(10);
/// The longest.
const MOST: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
struct Failing {
    generation: Option<i64>,
    times: u32,
    outage: bool,
    at: Instant,
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

    /// The object failed now: how long to wait. `jitter` is from 0 to 1.
    pub fn failed(
        &self,
        key: K,
        generation: Option<i64>,
        outage: bool,
        jitter: f64,
        now: Instant,
    ) -> Duration {
        let mut all = self.lock();
        let before = all.get(&key).filter(|f| f.generation == generation);
        let times = before.map_or(1, |f| f.times.saturating_add(1));
        let failing = Failing {
            generation,
            times,
            outage,
            at: now,
        };
        all.insert(key, failing);
        let full = (FIRST * 2u32.saturating_pow(times - 1)).min(MOST);
        FIRST + (full - FIRST).mul_f64(jitter)
    }

    /// The object is well. Returns others that need not wait longer: their failures were the API's, which answers again. Each at most
    /// once in its first pause, so that what fails for a reason of its own is not tried at every success of another.
    pub fn succeeded(&self, key: &K, now: Instant) -> Vec<K> {
        let mut all = self.lock();
        all.remove(key);
        let mut waiting = vec![];
        for (other, failing) in all
            .iter_mut()
            .filter(|(_, f)| f.outage && now.duration_since(f.at) >= FIRST)
        {
            failing.at = now;
            waiting.push(other.clone());
        }
        waiting
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
        let (b, now) = (Backoff::default(), Instant::now());
        let secs = |g: i64, jitter: f64| b.failed("a", Some(g), false, jitter, now).as_secs();
        let five: Vec<u64> = (0..5).map(|_| secs(1, 1.0)).collect();
        assert_eq!(five, [10, 20, 40, 60, 60]);
        assert_eq!(secs(1, 0.0), 10, "full jitter, never less than the first");
        assert_eq!(secs(2, 1.0), 10, "it changed");
        assert_eq!(secs(2, 1.0), 20);
        assert!(b.succeeded(&"a", now).is_empty());
        assert_eq!(secs(2, 1.0), 10);
        b.forget(&"a");
        assert_eq!(secs(2, 1.0), 10);
    }

    #[test]
    fn the_first_answer_after_an_outage_wakes_all_once() {
        let (b, now) = (Backoff::default(), Instant::now());
        for (key, outage) in [("a", true), ("b", true), ("c", false)] {
            b.failed(key, None, outage, 0.5, now);
        }
        assert!(
            b.succeeded(&"a", now).is_empty(),
            "no sooner than its first pause"
        );
        let later = now + FIRST;
        assert_eq!(
            b.succeeded(&"a", later),
            ["b"],
            "what is wrong with c itself still waits"
        );
        assert!(b.succeeded(&"a", later).is_empty(), "not again at once");
        let pause = b.failed("b", None, true, 1.0, later);
        assert_eq!(pause.as_secs(), 20, "and its pauses go on growing");
    }
}
