//! Workflows as small graphs with each stage's readiness, and the ServiceDefinitions there are. Drawn on the server.

use crate::{
    domain::{
        Definition, WorkflowView,
        definition::{StageView, columns},
        time::Timestamp,
    },
    ui::{Badge, Moment},
};
use leptos::prelude::*;

/// Size of a stage's box, and of the room it stands in.
const BOX: (usize, usize) = (150, 44);
const ROOM: (usize, usize) = (200, 64);
/// Longest name that fits a box, characters.
const FITS: usize = 18;

/// Everything the controller looks after.
#[component]
pub fn Workflows(
    /// Workflows.
    workflows: Vec<WorkflowView>,
    /// Definitions.
    definitions: Vec<Definition>,
    /// When that was last seen to be so, and why nobody can tell since.
    read: (Option<Timestamp>, Option<String>),
    /// At most so many of each are handed in.
    most: usize,
) -> impl IntoView {
    let read = match read {
        (at, Some(error)) => view! { <p class="banner warn">"The cluster could not be read: "{error}{at.map(|at| view! { ". What follows is as of "<Moment at/> })}</p> }.into_any(),
        (Some(at), None) => view! { <p class="sub">"As the cluster showed it "<Moment at/></p> }.into_any(),
        (None, None) => view! { <p class="sub">"The cluster has not been read yet."</p> }.into_any(),
    };
    let cut = (workflows.len() >= most || definitions.len() >= most).then(|| view! {
        <p class="banner warn">{format!("Only the first {most} of each by name are shown; kubectl has them all.")}</p>
    });
    let none = (workflows.is_empty() && definitions.is_empty()).then(|| view! {
        <section class="empty"><h2>"Nothing here yet"</h2><p>"Workflows and ServiceDefinitions appear as soon as they are in the cluster, whoever made them."</p></section>
    });
    view! {
        {read}
        {cut}
        {none}
        {workflows.into_iter().map(|workflow| view! { <Card workflow/> }).collect_view()}
        <Definitions definitions/>
    }
    .into_any()
}

fn word(phase: &str) -> &'static str {
    match phase {
        "Ready" => "ready",
        "Failed" => "failed",
        "Degraded" => "degraded",
        "Waiting" => "waiting",
        "Pending" => "settling",
        _ => "not seen yet",
    }
}

#[component]
fn Card(workflow: WorkflowView) -> impl IntoView {
    let w = workflow;
    let id = format!("workflow-{}", w.name);
    let said = w.message.clone().map(|m| view! { <p class=if matches!(w.phase.as_str(), "Failed" | "Degraded") { "banner bad" } else { "sub" }>{m}</p> });
    view! {
        <section class="card" aria-labelledby=id.clone()>
            <div class="task-head"><h2 id=id.clone()>{w.name.clone()}<Badge word=word(&w.phase)/></h2><span class="sub">{format!("{} · {} stages ready · made ", w.namespace, w.progress)}<Moment at=w.created_at/></span></div>
            {said}
            <Graph stages=w.stages.clone()/>
            <table class="list">
                <thead><tr><th scope="col">"Stage"</th><th scope="col">"State"</th><th scope="col">"After"</th><th scope="col">"Why not ready"</th></tr></thead>
                <tbody>{w.stages.into_iter().map(|s| view! {
                    <tr>
                        <td class="main">{s.name}</td>
                        <td data-label="State"><Badge word=word(&s.phase)/></td>
                        <td data-label="After">{s.depends_on.join(", ")}</td>
                        <td data-label="Why not ready">{s.message}</td>
                    </tr>
                }).collect_view()}</tbody>
            </table>
        </section>
    }
    .into_any()
}

#[component]
fn Graph(stages: Vec<StageView>) -> impl IntoView {
    let columns = columns(&stages);
    let mut places = vec![(0, 0); stages.len()];
    for (x, column) in columns.iter().enumerate() {
        for (y, stage) in column.iter().enumerate() {
            places[*stage] = (x * ROOM.0, y * ROOM.1);
        }
    }
    let rows = columns.iter().map(Vec::len).max().unwrap_or(0);
    let (width, height) = (columns.len() * ROOM.0, rows * ROOM.1);
    let at = |name: &String| {
        stages
            .iter()
            .position(|s| s.name == *name)
            .map(|i| places[i])
    };
    let mut edges = vec![];
    for (stage, (x, y)) in stages.iter().zip(&places) {
        for (fx, fy) in stage.depends_on.iter().filter_map(at) {
            let (fx, fy, ty) = (fx + BOX.0, fy + BOX.1 / 2, y + BOX.1 / 2);
            let middle = (fx + x) / 2;
            edges.push(view! { <path class="edge" d=format!("M{fx} {fy} C{middle} {fy} {middle} {ty} {x} {ty}")/> });
        }
    }
    let boxes = stages.iter().zip(&places).map(|(s, (x, y))| {
        let name = match s.name.chars().count() > FITS {
            true => s.name.chars().take(FITS - 1).chain(['…']).collect(),
            false => s.name.clone(),
        };
        view! {
            <g class=format!("stage {}", word(&s.phase).replace(' ', "-")) transform=format!("translate({x} {y})")>
                <rect width=BOX.0.to_string() height=BOX.1.to_string() rx="8"/>
                <text x="12" y="19">{name}</text>
                <text class="small" x="12" y="35">{word(&s.phase)}</text>
            </g>
        }
    }).collect_view();
    (width > 0).then(|| view! {
        // The table below says the same in words.
        <div class="graph" aria-hidden="true"><svg viewBox=format!("-2 -2 {} {}", width - (ROOM.0 - BOX.0) + 4, height - (ROOM.1 - BOX.1) + 4) width=(width - (ROOM.0 - BOX.0) + 4).to_string()>{edges}{boxes}</svg></div>
    })
}

#[component]
fn Definitions(definitions: Vec<Definition>) -> impl IntoView {
    (!definitions.is_empty()).then(|| view! {
        <section class="card"><h2>"ServiceDefinitions"</h2>
            <table class="list">
                <thead><tr><th scope="col">"Name"</th><th scope="col">"State"</th><th scope="col">"Replicas"</th><th scope="col">"Image"</th><th scope="col">"Belongs to"</th></tr></thead>
                <tbody>{definitions.into_iter().map(|d| {
                    let whose = match (d.instance, d.workflow, d.owner) {
                        (Some(id), _, _) => view! { <a href=format!("/services/{id}")>"a service of this portal"</a> }.into_any(),
                        (None, Some(workflow), _) => format!("workflow {workflow}").into_any(),
                        (None, None, Some(owner)) => view! { {owner}<span class="sub">"read only: made outside of svcforge"</span> }.into_any(),
                        (None, None, None) => view! { "nobody named"<span class="sub">"read only: made outside of svcforge"</span> }.into_any(),
                    };
                    view! {
                        <tr>
                            <td class="main">{d.name}<span class="sub">{d.namespace}</span></td>
                            <td data-label="State"><Badge word=word(&d.phase)/>{d.message.map(|m| view! { <span class="sub">{m}</span> })}</td>
                            <td data-label="Replicas">{format!("{} of {}", d.available, d.replicas)}</td>
                            <td data-label="Image"><code>{d.image}</code><span class="sub">{format!("port {}", d.port)}</span></td>
                            <td data-label="Belongs to">{whose}</td>
                        </tr>
                    }
                }).collect_view()}</tbody>
            </table>
        </section>
    }.into_any())
}
