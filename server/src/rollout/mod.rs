//! Day-2 rollouts: which upgrades may start. Two gates ask the same rule, [`may_act`](svcforge_app::domain::may_act): admission lets
//! due upgrades into their lanes as slots are free, and the claim asks again under the rollout's row lock, so that nothing starts
//! while halted, over the cap, or outside its window.

mod admit;
mod gate;
mod start;
mod target;

pub use admit::{admit_forever, admit_once, plan, told_of_rollout};
pub use start::{Start, may_start};
pub use target::must_halt;
