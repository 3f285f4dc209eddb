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

#[cfg(feature = "hydrate")]
mod browser {
    use super::{Hearing, Live};
    use leptos::prelude::*;
    use wasm_bindgen::{JsCast, closure::Closure};
    use web_sys::{EventSource, MessageEvent};

    pub fn start(live: Live) {
        live.now.set(Some(js_sys::Date::now()));
        set_interval(
            move || live.now.set(Some(js_sys::Date::now())),
            std::time::Duration::from_secs(5),
        );
        open(live);
    }

    fn tell(live: Live, what: String) {
        live.changed.update(|(n, text)| {
            *n += 1;
            *text = what;
        });
    }

    /// The browser reconnects by itself and sends `Last-Event-ID`; only a refused stream (signed out, say) ends.
    fn open(live: Live) {
        let Ok(source) = EventSource::new("/api/v1/stream") else {
            return;
        };
        let opened = Closure::<dyn FnMut()>::new(move || live.hearing.set(Hearing::Yes));
        source.set_onopen(Some(opened.as_ref().unchecked_ref()));
        opened.forget();
        let failed = Closure::<dyn FnMut()>::new(move || {
            if !matches!(live.hearing.get_untracked(), Hearing::Lost(_)) {
                live.hearing.set(Hearing::Lost(js_sys::Date::now()));
            }
        });
        source.set_onerror(Some(failed.as_ref().unchecked_ref()));
        failed.forget();
        let changed = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
            let text = event.data().as_string().unwrap_or_default();
            let Ok(data) = serde_json::from_str::<serde_json::Value>(&text) else {
                return;
            };
            let part = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
            tell(live, format!("{}:{}", part("topic"), part("id")));
        });
        let _ =
            source.add_event_listener_with_callback("changed", changed.as_ref().unchecked_ref());
        changed.forget();
        let reset = Closure::<dyn FnMut()>::new(move || tell(live, "reset".into()));
        let _ = source.add_event_listener_with_callback("reset", reset.as_ref().unchecked_ref());
        reset.forget();
        // Kept open as long as the page lives.
        std::mem::forget(source);
    }
}
