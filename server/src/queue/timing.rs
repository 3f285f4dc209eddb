//! Every span of the queue in one place, with the ratios between them checked: fault tests run it fifty times faster.

use std::time::Duration;

/// Spans of heartbeat, lease and stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Between heartbeats.
    pub heartbeat: Duration,
    /// How long an acknowledged heartbeat holds a task.
    pub lease: Duration,
    /// How long after its end a lease is taken over at the soonest.
    pub grace: Duration,
    /// After this long without an acknowledged heartbeat the worker's child gets SIGTERM.
    pub term_after: Duration,
    /// And after this long SIGKILL.
    pub kill_after: Duration,
    /// Between SIGTERM and SIGKILL when it is stopped for another reason.
    pub stop_grace: Duration,
    /// Between sweeps.
    pub sweep: Duration,
    /// Longest wait before an idle worker looks by itself.
    pub poll: Duration,
    /// Longest attempt, whatever its heartbeats say: above Helm's worst wall time (3–6 times its timeout).
    pub deadline: Duration,
}

impl Timing {
    /// As in production, for that Helm timeout.
    pub fn standard(helm_timeout: Duration) -> Self {
        Self {
            heartbeat: Duration::from_secs(15),
            lease: Duration::from_secs(60),
            grace: Duration::from_secs(15),
            term_after: Duration::from_secs(35),
            kill_after: Duration::from_secs(55),
            stop_grace: Duration::from_secs(20),
            sweep: Duration::from_secs(5),
            poll: Duration::from_secs(2),
            deadline: helm_timeout * 8,
        }
    }

    /// When a worker stops an attempt by itself: early enough that nothing of it is left when the task is taken over.
    pub fn own_deadline(&self) -> Duration {
        self.deadline
            .saturating_sub(self.heartbeat * 2 + self.stop_grace)
    }

    /// That many times faster, for tests. The deadline stays.
    pub fn faster(self, factor: u32) -> Self {
        Self {
            heartbeat: self.heartbeat / factor,
            lease: self.lease / factor,
            grace: self.grace / factor,
            term_after: self.term_after / factor,
            kill_after: self.kill_after / factor,
            stop_grace: self.stop_grace / factor,
            sweep: self.sweep / factor,
            poll: self.poll / factor,
            deadline: self.deadline,
        }
    }

    /// Refuses spans with which two workers could hold one task.
    ///
    /// # Errors
    /// Names the rule.
    pub fn check(&self) -> Result<(), String> {
        let rules = [
            (
                self.heartbeat * 2 <= self.term_after,
                "two heartbeats must fit before SIGTERM",
            ),
            (
                self.term_after < self.kill_after,
                "SIGTERM comes before SIGKILL",
            ),
            (
                self.kill_after <= self.lease,
                "SIGKILL comes before the lease ends",
            ),
            (
                self.grace * 4 >= self.lease,
                "the grace is at least a quarter of the lease",
            ),
            (
                self.heartbeat * 2 + self.stop_grace < self.deadline,
                "an attempt can be stopped before its deadline",
            ),
            (
                self.lease < self.deadline,
                "a lease is shorter than the deadline",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err((*rule).into()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_spans_keep_the_rules_at_every_speed() {
        let standard = Timing::standard(Duration::from_secs(240));
        for factor in [1, 10, 50] {
            assert_eq!(standard.faster(factor).check(), Ok(()));
        }
        let late_kill = Timing {
            kill_after: Duration::from_secs(61),
            ..standard
        };
        assert!(late_kill.check().is_err(), "a Helm that outlives its lease");
    }
}
