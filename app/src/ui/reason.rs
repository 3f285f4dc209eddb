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
) -> impl IntoView {
    let id = format!("why{}", action.replace(['/', '*'], "-"));
    let class = if danger {
        "button danger-quiet"
    } else {
        "button"
    };
    view! {
        <form class="reason" method="post" action=action>
            <label class="visually-hidden" for=id.clone()>{format!("Why: {label}")}</label>
            <input id=id name="reason" required maxlength="500" placeholder="Why" autocomplete="off"/>
            <button class=class type="submit">{label}</button>
        </form>
    }
    .into_any()
}
