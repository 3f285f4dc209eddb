//! One service: how it serves, what is being done, how to reach it, what happened.

use super::{FormFlash, ServiceDetail};
use crate::{
    api,
    domain::{
        Connection, DriftVerdict, Event, Instance, InstanceState, LogLine, Part, Task, TaskState,
        catalog::as_text,
    },
    live::Live,
    ui::{Badge, CopyButton, Moment, ReasonForm, Span, Title, Trouble},
};
use leptos::prelude::*;
use leptos_router::hooks::use_params_map;

/// Everything about one service, live.
#[component]
pub fn ServicePage() -> impl IntoView {
    let params = use_params_map();
    let id = Memo::new(move |_| params.get().get("id").unwrap_or_default());
    let detail = Resource::new(move || id.get(), api::detail);
    let flash = SharedValue::new(|| use_context::<FormFlash>().unwrap_or_default()).into_inner();
    let own_task = move |task: &str| {
        let shown = detail.try_get_untracked().flatten();
        shown
            .and_then(Result::ok)
            .is_some_and(|d| d.tasks.iter().any(|t| t.id.to_string() == task))
    };
    expect_context::<Live>().on_change(
        move |what| match what.split_once(':') {
            Some(("task", task)) => own_task(task),
            Some(("instance", instance)) => instance == id.get_untracked(),
            _ => false,
        },
        move || detail.refetch(),
    );
    view! {
        <Transition fallback=|| ()>
            {move || {
                let flash = flash.clone();
                Suspend::new(async move {
                    match detail.await {
                        Err(problem) => view! { <Trouble problem/> }.into_any(),
                        Ok(detail) => view! { <Service detail flash/> }.into_any(),
                    }
                })
            }}
        </Transition>
    }
}

#[component]
fn Service(detail: ServiceDetail, flash: FormFlash) -> impl IntoView {
    let ServiceDetail {
        instance,
        title,
        tasks,
        log,
        events,
        connection,
        may_change,
        may_delete,
        may_reveal,
        ..
    } = detail;
    let problem = flash
        .problem
        .map(|p| view! { <div class="banner bad" role="alert">{p.detail}</div> });
    let reachable = !matches!(
        instance.state,
        InstanceState::Deleting | InstanceState::Deleted
    );
    let revealed = flash.revealed.is_some();
    let connection = flash.revealed.unwrap_or(connection);
    let id = instance.id.to_string();
    view! {
        <Title text=instance.name.clone()/>
        {problem}
        <Head instance=instance.clone() title may_change may_delete/>
        <Standing instance=instance.clone() may_change/>
        <div class="two-columns wide">
            <div class="stack">
                <Readiness instance=instance.clone()/>
                <Work tasks log may_change/>
            </div>
            <div class="stack">
                {reachable.then(|| view! { <Reach id connection revealed may_reveal/> })}
                <Facts instance=instance may_change/>
                <Timeline events/>
            </div>
        </div>
    }
    .into_any()
}

#[component]
fn Head(instance: Instance, title: String, may_change: bool, may_delete: bool) -> impl IntoView {
    let i = instance;
    let post = |what: &str| format!("/services/{}/{what}", i.id);
    let alive = !matches!(i.state, InstanceState::Deleting | InstanceState::Deleted);
    let newer = i
        .target_version
        .clone()
        .filter(|t| *t != i.chart_version && i.state == InstanceState::Ready);
    let upgrade = newer.filter(|_| may_change).map(|version| view! {
        <form method="post" action=post("upgrade")><button class="button" type="submit">{format!("Upgrade to {version}")}</button></form>
    });
    let retry = (i.state == InstanceState::Failed && may_change).then(|| view! {
        <form method="post" action=post("retry")><button class="button primary" type="submit">"Try again"</button></form>
    });
    let delete = alive.then(|| match may_delete {
        true => {
            view! { <a class="button danger-quiet" href=post("delete")>"Delete"</a> }.into_any()
        }
        false => view! { <span class="sub">"Your role does not allow changes."</span> }.into_any(),
    });
    view! {
        <header class="page-head service-head">
            <div>
                <p class="crumbs"><a href="/services">"Services"</a>" / "{i.team.clone()}</p>
                <h1>{i.name.clone()}<Badge word=i.badge()/></h1>
                <p class="sentence" aria-live="polite">{i.headline()}</p>
                <p class="sub">{format!("{title} {} · asked by {} ", i.chart_version, i.created_by)}<Moment at=i.created_at/></p>
            </div>
            <div class="actions">{upgrade}{retry}{delete}</div>
        </header>
    }
    .into_any()
}

/// What keeps it where it is, and what a person may do about that.
#[component]
fn Standing(instance: Instance, may_change: bool) -> impl IntoView {
    let i = instance;
    let post = |what: &str| format!("/services/{}/{what}", i.id);
    let drifted = matches!(i.drift, DriftVerdict::Changed | DriftVerdict::Gone);
    // What is gone cannot be kept as it is.
    let stands = (i.drift == DriftVerdict::Changed).then(|| view! {
        <button class="button" type="submit" name="choice" value="accept">"Accept"</button>
        <button class="button quiet" type="submit" name="choice" value="keep">"Keep, and hold"</button>
        <span class="sub">"What is accepted stands until the next change or upgrade, which brings back the settings shown here."</span>
    });
    let choices = (drifted && may_change).then(|| view! {
        <form class="actions" method="post" action=post("drift")>
            <button class="button" type="submit" name="choice" value="put_back">"Put it back"</button>
            {stands}
        </form>
    });
    let drift = i.drift_detail.map(|d| view! { <div class="banner warn"><p>{format!("Drift, {}: {d}", i.drift.as_str())}</p>{choices}</div> });
    let held = i.hold.map(|h| view! { <p class="banner warn">{h}</p> });
    let paused = i
        .paused
        .clone()
        .map(|p| view! { <p class="banner warn">{p}</p> });
    let why = i.upgrade.why.map(|why| {
        view! {
            <p class="sentence">{format!("{}: {why}", i.target_version.unwrap_or_default())}</p>
        }
    });
    view! { {drift}{held}{paused}{why} }.into_any()
}

#[component]
fn Readiness(instance: Instance) -> impl IntoView {
    let r = instance.readiness;
    let parts = r.parts;
    let empty = parts.is_empty();
    view! {
        <section class="card" aria-labelledby="parts">
            <h2 id="parts">"Parts"</h2>
            {empty.then(|| view! { <p class="sub">{r.sentence}</p> })}
            <ul class="parts">{parts.into_iter().map(|part| view! { <PartRow part/> }).collect_view()}</ul>
            {r.observed_at.map(|at| view! { <p class="sub">"Seen "<Moment at/></p> })}
        </section>
    }
    .into_any()
}

#[component]
fn PartRow(part: Part) -> impl IntoView {
    let word = crate::ui::verdict_word(part.verdict);
    view! {
        <li>
            <Badge word=word/>
            <span class="part-name">{part.kind}" "<code>{part.name}</code></span>
            <span class="sub">{part.sentence}</span>
        </li>
    }
    .into_any()
}

#[component]
fn Work(tasks: Vec<Task>, log: Vec<LogLine>, may_change: bool) -> impl IntoView {
    let mut tasks = tasks.into_iter();
    let newest = tasks
        .next()
        .map(|task| view! { <TaskCard task log may_change/> });
    let older: Vec<Task> = tasks.collect();
    let older = (!older.is_empty()).then(|| view! {
        <details><summary>{format!("Earlier work ({})", older.len())}</summary>
            <ul class="older">{older.into_iter().map(|t| view! {
                <li><Badge word=t.state.as_str()/>{t.kind}" · "{t.reason}" · "<Moment at=t.created_at/>{t.error.map(|e| view! { <p class="error-text">{e}</p> })}</li>
            }).collect_view()}</ul>
        </details>
    });
    view! { <section class="card" aria-labelledby="work"><h2 id="work">"Work"</h2>{newest}{older}</section> }.into_any()
}

#[component]
fn TaskCard(task: Task, log: Vec<LogLine>, may_change: bool) -> impl IntoView {
    let running = matches!(task.state, TaskState::Queued | TaskState::Running);
    let attempt = task.attempt;
    let waiting = task.waiting_for.clone().filter(|_| running).map(|what| view! {
        <p class="banner warn">{format!("Waiting for {what} since ")}{task.waiting_since.map(|at| view! { <Moment at/> })}</p>
    });
    let error = task
        .error
        .clone()
        .filter(|_| task.state != TaskState::Succeeded)
        .map(|e| view! { <p class="error-text">{e}</p> });
    let cancel = (running && may_change && task.kind != "deprovision").then(|| view! {
        <form method="post" action=format!("/services/{}/cancel/{}", task.instance_id, task.id)><button class="button quiet" type="submit">"Cancel"</button></form>
    });
    let empty = log.is_empty();
    view! {
        <div class="task-head">
            <span><Badge word=task.state.as_str()/>{format!("{} · {}", task.kind, task.reason)}</span>
            <span class="sub">{format!("attempt {} of {}", attempt.max(1), task.max_attempts)}</span>
            {cancel}
        </div>
        {waiting}{error}
        <ol class="steps">
            {task.steps.into_iter().map(|s| view! {
                <li class=format!("step {}", s.state.as_str())>
                    <span class="step-name">{s.name}{(s.attempt > 1).then(|| view! { <span class="sub">{format!(" attempt {}", s.attempt)}</span> })}</span>
                    <span class="visually-hidden">{s.state.as_str()}</span>
                    <Span from=s.started_at to=s.finished_at/>
                </li>
            }).collect_view()}
        </ol>
        <details class="log" open=true>
            <summary>"Log"</summary>
            {empty.then(|| view! { <p class="sub">"Nothing has been written yet."</p> })}
            <ol class="log-lines" tabindex="0" aria-label="Log lines">
                {log.into_iter().map(|line| view! {
                    <li id=format!("L{}", line.seq) class=line.stream><span class="log-text">{line.text}</span></li>
                }).collect_view()}
            </ol>
        </details>
    }
    .into_any()
}

#[component]
fn Reach(id: String, connection: Connection, revealed: bool, may_reveal: bool) -> impl IntoView {
    let secrets = connection.fields.iter().any(|f| f.secret);
    let ask = (secrets && !revealed && may_reveal).then(|| {
        view! {
            <form method="post" action=format!("/services/{id}/reveal")>
                <button class="button" type="submit">"Reveal secrets"</button>
                <span class="sub">" This is recorded."</span>
            </form>
        }
    });
    view! {
        <section class="card" aria-labelledby="reach">
            <h2 id="reach">"Connection"</h2>
            <dl class="connection">
                {connection.fields.into_iter().map(|f| match f.value {
                    Some(value) => view! {
                        <dt>{f.name.clone()}</dt>
                        <dd><code>{value.clone()}</code><CopyButton text=value what=f.name/></dd>
                    }.into_any(),
                    None => view! { <dt>{f.name}</dt><dd><span class="masked" aria-label="hidden">"••••••••"</span></dd> }.into_any(),
                }).collect_view()}
            </dl>
            {ask}
        </section>
    }
    .into_any()
}

#[component]
fn Facts(instance: Instance, may_change: bool) -> impl IntoView {
    let i = instance;
    let post = |what: &str| format!("/services/{}/{what}", i.id);
    let alive = !matches!(i.state, InstanceState::Deleting | InstanceState::Deleted);
    let window = i.maintenance_window.clone().unwrap_or_default();
    let forms = (may_change && alive).then(|| {
        let pause = match &i.paused {
            Some(_) => view! { <form method="post" action=post("pause")><button class="button" type="submit" name="end" value="1">"End its pause"</button></form> }.into_any(),
            None => view! { <ReasonForm action=post("pause") label="Pause" lasting=true/> }.into_any(),
        };
        view! {
            <p><a class="button" href=post("change")>"Change settings"</a></p>
            <details><summary>"More"</summary>
                <form class="reason" method="post" action=post("window")>
                    <label for="window">"Maintenance window"</label>
                    <input type="hidden" name="version" value=i.version/>
                    <input id="window" name="maintenance_window" value=window.clone() placeholder="Sat,Sun 02:00-05:00 Europe/Berlin" autocomplete="off"/>
                    <button class="button" type="submit">"Set"</button>
                </form>
                {pause}
                <ReasonForm action=post("rollback") label="Roll back" danger=true/>
            </details>
        }
    });
    let opens = i
        .next_openings
        .first()
        .copied()
        .map(|at| view! { " · opens "<Moment at/> });
    view! {
        <section class="card" aria-labelledby="facts">
            <h2 id="facts">"Settings"</h2>
            <dl class="facts">
                {i.parameters.into_iter().filter(|(_, v)| !as_text(v).is_empty()).map(|(name, value)| view! { <dt>{name}</dt><dd><code>{as_text(&value)}</code></dd> }).collect_view()}
                <dt>"Release"</dt><dd><code>{i.release.name}</code></dd>
                <dt>"Namespace"</dt><dd><code>{i.release.namespace}</code></dd>
                <dt>"Machine upgrades"</dt><dd><span>{if window.is_empty() { "at any time".to_owned() } else { window.clone() }}{opens}</span></dd>
                {i.pin.map(|p| view! { <dt>"Pinned"</dt><dd><span>{format!("{} by {} until ", p.reason, p.by)}<Moment at=p.until/></span></dd> })}
                <dt>"Expires"</dt><dd>{match i.expires_at { Some(at) => view! { <Moment at/> }.into_any(), None => view! { <span>"never"</span> }.into_any() }}</dd>
            </dl>
            {forms}
        </section>
    }
    .into_any()
}

#[component]
fn Timeline(events: Vec<Event>) -> impl IntoView {
    view! {
        <section class="card" aria-labelledby="timeline">
            <h2 id="timeline">"Timeline"</h2>
            <ol class="timeline">
                {events.into_iter().map(|e| view! {
                    <li id=format!("event-{}", e.id)><p>{e.message}</p><p class="sub"><Moment at=e.at/>" · "{e.actor}</p></li>
                }).collect_view()}
            </ol>
        </section>
    }
    .into_any()
}
