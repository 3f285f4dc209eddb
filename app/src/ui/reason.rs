//! A button that wants a reason: the form of every halt, resume, pause and release. Works without JavaScript.

use leptos::prelude::*;

/// The form. Posts `reason` to `action`.
#[component]
pub fn ReasonForm(
    /// Where it posts.
    #[prop(into)]
    action: String,
    /// What the button says.
    label: &'static str,
    /// What is wrong with what was posted.
    #[prop(optional)]
    danger: bool,
    /// Whether it also asks for how long.
    #[prop(optional)]
    lasting: bool,
) -> impl IntoView {
    let id = format!("why{}", action.replace(['/', '*'], "-"));
    let class = if danger {
        "button danger-quiet"
    } else {
        "button"
    };
    let span = lasting.then(|| {
        let id = format!("{id}-for");
        view! {
            <label class="visually-hidden" for=id.clone()>"For how long"</label>
            <select id=id name="for">
                <option value="">"until it is ended"</option>
                <option value="1h">"for an hour"</option>
                <option value="8h">"for 8 hours"</option>
                <option value="24h">"for a day"</option>
                <option value="168h">"for a week"</option>
            </select>
        }
    });
    view! {
        <form class="reason" method="post" action=action>
            <label class="visually-hidden" for=id.clone()>{format!("Why: {label}")}</label>
            <input id=id name="reason" required maxlength="500" placeholder="Why" autocomplete="off"/>
            {span}
            <button class=class type="submit">{label}</button>
        </form>
    }
    .into_any()
}
