//! Every path on one screen.

use crate::{
    live::provide_live,
    pages::{
        CatalogPage, ChangePage, DeletePage, DriftPage, NotFoundPage, RequestPage, RolloutsPage,
        ServicePage, ServicesPage, WorkflowsPage,
    },
    ui::Frame,
};
use leptos::prelude::*;
use leptos_meta::provide_meta_context;
use leptos_router::{
    SsrMode,
    components::{Route, Router, Routes},
    path,
};

/// The application. Every route is rendered whole before it is sent: it must be readable without JavaScript.
#[component]
pub fn App() -> impl IntoView {
    provide_meta_context();
    provide_live();
    view! {
        <Router>
            <Frame>
                <Routes fallback=|| view! { <NotFoundPage/> }.into_any()>
                    <Route path=path!("/services") view=ServicesPage ssr=SsrMode::Async/>
                    <Route path=path!("/services/:id") view=ServicePage ssr=SsrMode::Async/>
                    <Route path=path!("/services/:id/delete") view=DeletePage ssr=SsrMode::Async/>
                    <Route path=path!("/services/:id/change") view=ChangePage ssr=SsrMode::Async/>
                    // Where a post of a page leads when it comes back: the browser must find the same page there.
                    <Route path=path!("/services/:id/*post") view=ServicePage ssr=SsrMode::Async/>
                    <Route path=path!("/rollouts/*post") view=RolloutsPage ssr=SsrMode::Async/>
                    <Route path=path!("/drift/*post") view=DriftPage ssr=SsrMode::Async/>
                    <Route path=path!("/workflows") view=WorkflowsPage ssr=SsrMode::Async/>
                    <Route path=path!("/catalog") view=CatalogPage ssr=SsrMode::Async/>
                    <Route path=path!("/request/:type") view=RequestPage ssr=SsrMode::Async/>
                </Routes>
            </Frame>
        </Router>
    }
}
