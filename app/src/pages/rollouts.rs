//! Rollouts: what moves to which version, what is halted and why, who waits for what. Drawn on the server.

use crate::{
    domain::{Rollout, RolloutsView, WaitingUpgrade},
    ui::{Badge, Moment, ReasonForm},
};
use leptos::prelude::*;

/// Every rollout.
#[component]
pub fn Rollouts(
    /// What there is.
    found: RolloutsView,
    /// Whether one may manage them.
    may: bool,
) -> impl IntoView {
    let all = may.then(|| match found.halted.is_some() {
        true => {
            view! { <ReasonForm action="/rollouts/resume" label="Resume everything"/> }.into_any()
        }
        false => {
            view! { <ReasonForm action="/rollouts/halt" label="Halt everything" danger=true/> }
                .into_any()
        }
    });
    let pauses = (!found.pauses.is_empty()).then(|| view! {
        <section class="card"><h2>"Pauses"</h2><ul>
            {found.pauses.into_iter().map(|p| view! {
                <li>{format!("{} {} by {}: {} ", p.scope, p.of, p.by, p.reason)}{p.until.map(|at| view! { "until "<Moment at/> })}</li>
            }).collect_view()}
        </ul></section>
    });
    view! {
        {found.halted.map(|h| view! { <div class="banner bad">{format!("Everything is halted by {}: {} ", h.by, h.reason)}<Moment at=h.since/></div> })}
        <div class="actions">{all}</div>
        {pauses}
        {found.items.into_iter().map(|rollout| view! { <Card rollout may/> }).collect_view()}
    }
    .into_any()
}

#[component]
fn Card(rollout: Rollout, may: bool) -> impl IntoView {
    let r = rollout;
    let halted = r.state == "halted";
    let id = format!("rollout-{}", r.service_type);
    let form = may.then(|| match halted {
        true => view! { <ReasonForm action=format!("/rollouts/{}/resume", r.service_type) label="Resume"/> }.into_any(),
        false => view! { <ReasonForm action=format!("/rollouts/{}/halt", r.service_type) label="Halt" danger=true/> }.into_any(),
    });
    let said = r.reason.map(|reason| view! {
        <p class=if halted { "banner bad" } else { "sub" }>{format!("{} by {}: {reason} ", if halted { "Halted" } else { "Resumed" }, r.by.unwrap_or_default())}<Moment at=r.since/></p>
    });
    let versions: Vec<String> = r
        .versions
        .iter()
        .map(|v| format!("{} on {}", v.count, v.version))
        .collect();
    let line = format!(
        "Target {} · {} of {} slots taken · {}",
        r.target_version
            .as_deref()
            .unwrap_or("none: it has left the catalog"),
        r.in_flight,
        r.max_in_flight,
        if versions.is_empty() {
            "nothing runs".into()
        } else {
            versions.join(", ")
        }
    );
    view! {
        <section class="card" aria-labelledby=id.clone()>
            <div class="task-head"><h2 id=id.clone()>{r.service_type}<Badge word=if halted { "halted" } else { "active" }/></h2>{form}</div>
            <p>{line}</p>
            {said}
            <Waiting waiting=r.waiting/>
        </section>
    }
    .into_any()
}

#[component]
fn Waiting(waiting: Vec<WaitingUpgrade>) -> impl IntoView {
    (!waiting.is_empty()).then(|| view! {
        <table class="list">
            <thead><tr><th scope="col">"Waits"</th><th scope="col">"Why not yet"</th><th scope="col">"When"</th></tr></thead>
            <tbody>{waiting.into_iter().map(|w| view! {
                <tr>
                    <td class="main"><a href=format!("/services/{}", w.instance)>{w.name}</a><span class="sub">{w.team}</span></td>
                    <td data-label="Why not yet">{w.why}</td>
                    <td data-label="When">{w.next_at.map(|at| view! { <Moment at/> })}</td>
                </tr>
            }).collect_view()}</tbody>
        </table>
    }.into_any())
}
