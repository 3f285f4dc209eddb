//! The component kit.

mod badge;
mod copy;
mod field;
mod frame;
mod icon;
mod reason;
mod time;
mod title;
mod trouble;

pub use badge::{Badge, verdict_word};
pub use copy::CopyButton;
pub use field::{Field, Lines};
pub use frame::Frame;
pub use icon::Icon;
pub use reason::ReasonForm;
pub use time::{Moment, Span};
pub use title::Title;
pub use trouble::Trouble;
