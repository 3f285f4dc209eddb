//! Server-sent events into signals: what changed, and whether we still hear. Data is never sent; pages ask again.

use leptos::prelude::*;

/// What the stream says of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hearing {
    /// Not started: the server drew this, or JavaScript has just begun.
    Not,
    /// Connected.
    Yes,
    /// Lost, since this time (milliseconds since the epoch).
    Lost(f64),
}

/// The signals.
#[derive(Clone, Copy)]
pub struct Live {
    /// The newest change as `<topic>:<id>`; `reset` when anything may have changed. The number makes equal ones differ.
    pub changed: RwSignal<(u64, String)>,
    /// Whether we hear.
    pub hearing: RwSignal<Hearing>,
    /// The time, every few seconds, once in a browser; none while the server draws, so that both draw the same.
    pub now: RwSignal<Option<f64>>,
}

/// Makes the signals and, in a browser, starts listening.
pub fn provide_live() -> Live {
    let live = Live {
        changed: RwSignal::new((0, String::new())),
        hearing: RwSignal::new(Hearing::Not),
        now: RwSignal::new(None),
    };
    provide_context(live);
    #[cfg(feature = "hydrate")]
    Effect::new(move || browser::start(live));
    live
}

impl Live {
    /// Runs `refetch` when something that `matches` changes, at most every 300 ms.
    pub fn on_change(
        self,
        matches: impl Fn(&str) -> bool + 'static,
        refetch: impl Fn() + Copy + 'static,
    ) {
        #[cfg(feature = "hydrate")]
        {
            // The net under the stream: what it failed to tell is seen at the third tick (15 s) at the latest.
            Effect::new(move |ticks: Option<u32>| {
                let _ = self.now.get();
                let ticks = ticks.map_or(0, |t| t + 1);
                if ticks > 0 && ticks % 3 == 0 {
                    refetch();
                }
                ticks
            });
            let waiting = StoredValue::new(false);
            Effect::new(move |before: Option<u64>| {
                let (n, what) = self.changed.get();
                // The first run is the page's own start.
                if before.is_some_and(|b| b != n)
                    && (what == "reset" || matches(&what))
                    && !waiting.get_value()
                {
                    waiting.set_value(true);
                    set_timeout(
                        move || {
                            let _ = waiting.try_set_value(false);
                            refetch();
                        },
                        std::time::Duration::from_millis(300),
                    );
                }
                n
            });
        }
        #[cfg(not(feature = "hydrate"))]
        let _ = (matches, refetch);
    }
}

/// `public/stream.js` holds the connection, one for all tabs of a browser, and tells by an event of the window.
#[cfg(feature = "hydrate")]
mod browser {
    use super::{Hearing, Live};
    use leptos::prelude::*;
    use wasm_bindgen::{JsCast, closure::Closure};
    use web_sys::CustomEvent;

    pub fn start(live: Live) {
        live.now.set(Some(js_sys::Date::now()));
        set_interval(
            move || live.now.set(Some(js_sys::Date::now())),
            std::time::Duration::from_secs(5),
        );
        let told = Closure::<dyn FnMut(CustomEvent)>::new(move |event: CustomEvent| {
            let detail = event.detail().as_string().unwrap_or_default();
            hear(live, detail.split_once(' ').unwrap_or((&detail, "")));
        });
        let _ =
            window().add_event_listener_with_callback("svcforge", told.as_ref().unchecked_ref());
        // For as long as the page lives.
        told.forget();
    }

    fn hear(live: Live, (kind, what): (&str, &str)) {
        match kind {
            "open" => live.hearing.set(Hearing::Yes),
            "lost" if !matches!(live.hearing.get_untracked(), Hearing::Lost(_)) => {
                live.hearing.set(Hearing::Lost(js_sys::Date::now()));
                live.now.set(Some(js_sys::Date::now()));
            }
            "changed" => live.changed.update(|(n, text)| {
                *n += 1;
                *text = what.to_owned();
            }),
            _ => {}
        }
    }
}
