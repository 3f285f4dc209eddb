//! Drift: what is not as it was installed, releases nobody knows, and the brake on repairs. Drawn on the server.

use crate::{
    domain::{DriftItem, DriftView, Leftover, Orphan},
    ui::{Moment, ReasonForm},
};
use leptos::prelude::*;

/// Everything that is not as it should be.
#[component]
pub fn Found(
    /// What was found.
    found: DriftView,
    /// Whether one may decide about it.
    may: bool,
) -> impl IntoView {
    let f = found;
    let known = f.swept_at.is_some() && f.sweep_error.is_none();
    let nothing = known
        && f.gone.is_empty()
        && f.changed.is_empty()
        && f.unknown.is_empty()
        && f.orphans.is_empty();
    let brake = f.breaker.reason.map(|reason| {
        let open = f.breaker.open;
        let action = format!("/drift/breaker/release?list={}", f.breaker.list.unwrap_or_default());
        let form = (open && may).then(|| view! { <ReasonForm action label="Let them go"/> });
        let said = match f.breaker.released_by {
            Some(by) => format!("Released by {by}: {reason}"),
            None => format!("The brake on repairs is on: {reason}"),
        };
        view! { <section class="card"><p class=if open { "banner bad" } else { "banner warn" }>{said}</p>{form}</section> }
    });
    let swept = match (f.sweep_error, f.swept_at) {
        (Some(error), at) => view! { <p class="banner warn">"The cluster could not be read: "{error}{at.map(|at| view! { ". Last read "<Moment at/> })}</p> }.into_any(),
        (None, Some(at)) => view! { <p class="sub">"The cluster was read "<Moment at/></p> }.into_any(),
        (None, None) => view! { <p class="sub">"The cluster has not been read yet."</p> }.into_any(),
    };
    view! {
        {swept}
        {brake}
        {nothing.then(|| view! { <section class="empty"><h2>"No drift"</h2><p>"Every release that was found is as it was installed."</p></section> })}
        <Items title="Gone" items=f.gone/>
        <Items title="Changed from outside" items=f.changed/>
        <Items title="Unknown" items=f.unknown/>
        <Orphans title="Orphans: releases that no service knows" items=f.orphans may/>
        <Orphans title="Of another installation" items=f.foreign may=false/>
        <Orphans title="Not managed by svcforge" items=f.unmanaged may=false/>
        <Leftovers items=f.leftovers/>
    }
    .into_any()
}

#[component]
fn Items(title: &'static str, items: Vec<DriftItem>) -> impl IntoView {
    (!items.is_empty()).then(|| view! {
        <section class="card"><h2>{title}</h2>
            <table class="list">
                <thead><tr><th scope="col">"Service"</th><th scope="col">"What was seen"</th><th scope="col">"Since"</th></tr></thead>
                <tbody>{items.into_iter().map(|i| view! {
                    <tr>
                        <td class="main"><a href=format!("/services/{}", i.instance)>{i.name}</a><span class="sub">{format!("{} · {}/{}", i.team, i.namespace, i.release)}</span></td>
                        <td data-label="What was seen">{i.detail}</td>
                        <td data-label="Since"><Moment at=i.since/></td>
                    </tr>
                }).collect_view()}</tbody>
            </table>
        </section>
    }.into_any())
}

#[component]
fn Orphans(title: &'static str, items: Vec<Orphan>, may: bool) -> impl IntoView {
    (!items.is_empty()).then(|| view! {
        <section class="card"><h2>{title}</h2>
            <table class="list">
                <thead><tr><th scope="col">"Release"</th><th scope="col">"First seen"</th><th scope="col">"Last seen"</th><th scope="col">"Decision"</th></tr></thead>
                <tbody>{items.into_iter().map(|o| {
                    let form = (may && o.status == "open").then(|| view! { <ReasonForm action=format!("/drift/orphans/{}/ignore", o.id) label="Ignore"/> });
                    let said = o.status_by.map(|by| format!("{} by {by}", o.status));
                    view! {
                        <tr>
                            <td class="main"><code>{o.release}</code><span class="sub">{format!("{} {}", o.namespace, o.owner)}</span></td>
                            <td data-label="First seen"><Moment at=o.first_seen_at/></td>
                            <td data-label="Last seen"><Moment at=o.last_seen_at/></td>
                            <td data-label="Decision">{said}{form}</td>
                        </tr>
                    }
                }).collect_view()}</tbody>
            </table>
        </section>
    }.into_any())
}

#[component]
fn Leftovers(items: Vec<Leftover>) -> impl IntoView {
    (!items.is_empty()).then(|| view! {
        <section class="card"><h2>"Leftovers: kept of removed services"</h2>
            <p class="sub">"Their entries or charts say so. svcforge does not remove them by itself."</p>
            <table class="list">
                <thead><tr><th scope="col">"What"</th><th scope="col">"Of"</th><th scope="col">"Kept since"</th><th scope="col">"To be kept until"</th><th scope="col">"Last seen"</th></tr></thead>
                <tbody>{items.into_iter().map(|l| view! {
                    <tr>
                        <td class="main"><code>{l.name}</code><span class="sub">{format!("{} in {}", l.kind, l.namespace)}</span></td>
                        <td data-label="Of"><a href=format!("/services/{}", l.instance)>{l.service}</a>{format!(" · {}", l.team)}</td>
                        <td data-label="Kept since"><Moment at=l.kept_at/></td>
                        <td data-label="To be kept until">{match l.keep_until { Some(at) => view! { <Moment at/> }.into_any(), None => "the chart says: for good".into_any() }}</td>
                        <td data-label="Last seen"><Moment at=l.last_seen_at/></td>
                    </tr>
                }).collect_view()}</tbody>
            </table>
        </section>
    }.into_any())
}
