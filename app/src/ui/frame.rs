//! Header, navigation, and what is true of every page.

use crate::{
    api,
    live::{Hearing, Live},
};
use leptos::prelude::*;
use leptos_router::hooks::use_location;

/// The frame around every page.
#[component]
pub fn Frame(
    /// The page.
    children: Children,
) -> impl IntoView {
    let site = Resource::new(|| (), |()| api::site());
    expect_context::<Live>().on_change(
        |what| what.starts_with("rollout:") || what == "drift:brake",
        move || site.refetch(),
    );
    let path = use_location().pathname;
    let current =
        move |prefix: &'static str| move || path.get().starts_with(prefix).then_some("page");
    view! {
        <a class="skip" href="#main">"Skip to content"</a>
        <header class="top">
            <a class="brand" href="/services"><img src="/icons/logo.svg" alt="" width="24" height="24"/>"svcforge"</a>
            <nav aria-label="Main">
                <a href="/services" aria-current=current("/services")>"Services"</a>
                <a href="/catalog" aria-current=current("/catalog")>"Catalog"</a>
                <a href="/rollouts" aria-current=current("/rollouts")>"Rollouts"</a>
                <a href="/drift" aria-current=current("/drift")>"Drift"</a>
                <a href="/workflows" aria-current=current("/workflows")>"Workflows"</a>
            </nav>
            <Transition fallback=|| ()>
                {move || Suspend::new(async move {
                    site.await.ok().map(|site| view! {
                        {site.cluster_note.map(|note| view! { <span class="note">{note}</span> })}
                        <form class="who" method="post" action="/signout">
                            <span>{site.me.name}</span>
                            <button class="button quiet" type="submit">"Sign out"</button>
                        </form>
                    })
                })}
            </Transition>
        </header>
        <Staleness/>
        <Transition fallback=|| ()>
            {move || Suspend::new(async move {
                site.await.ok().map(|site| site.banners.into_iter().map(|b| view! { <p class="banner bad everywhere">{b}</p> }).collect_view())
            })}
        </Transition>
        <main id="main">{children()}</main>
    }
}

/// Says when the page may be old.
#[component]
fn Staleness() -> impl IntoView {
    let live = expect_context::<Live>();
    let text = move || match (live.hearing.get(), live.now.get()) {
        (Hearing::Lost(since), Some(now)) => Some(format!(
            "Reconnecting; last update {} s ago.",
            ((now - since) / 1000.0).max(0.0).round()
        )),
        _ => None,
    };
    view! { <div class="stale" role="status">{text}</div> }
}
