//! Points in time. On the server jiff's; in a browser, which parses and prints dates by itself, a light one with the same JSON.

#[cfg(feature = "ssr")]
pub use jiff::Timestamp;

#[cfg(not(feature = "ssr"))]
pub use browser::Timestamp;

#[cfg(not(feature = "ssr"))]
mod browser {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
    use std::fmt;

    /// Milliseconds since the epoch; RFC 3339 in JSON.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Timestamp(i64);

    impl Timestamp {
        /// Milliseconds since the epoch.
        pub fn as_millisecond(self) -> i64 {
            self.0
        }
    }

    impl fmt::Display for Timestamp {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let date = js_sys::Date::new(&wasm_bindgen::JsValue::from_f64(self.0 as f64));
            f.write_str(&String::from(date.to_iso_string()))
        }
    }

    impl Serialize for Timestamp {
        fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
            s.collect_str(self)
        }
    }

    impl<'de> Deserialize<'de> for Timestamp {
        fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
            let text = String::deserialize(d)?;
            let ms = js_sys::Date::parse(&text);
            if ms.is_finite() {
                Ok(Self(ms as i64))
            } else {
                Err(D::Error::custom("not a time"))
            }
        }
    }
}
