//! The catalog: a folder in git is the truth; it is loaded, checked as a whole, and published to Postgres as a revision.

mod entry;
mod fault;
mod load;
mod pack;
mod publish;
mod values;
mod watch;

pub use entry::{Credential, Data, Entry, Field, OnDelete, RolloutMode, Seconds, parse_span};
pub use fault::Fault;
pub use load::{Packed, load};
pub use publish::publish;
pub use values::compose;
pub use watch::{load_now, watch};
