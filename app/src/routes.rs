//! Every path on one screen.

use crate::{
    live::provide_live,
    pages::{
        CatalogPage, DeletePage, DriftPage, NotFoundPage, RequestPage, RolloutsPage, ServicePage,
        ServicesPage, WorkflowsPage,
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
                    // Where a post of this page leads when it comes back: the browser must find the same page there.
                    <Route path=path!("/services/:id/reveal") view=ServicePage ssr=SsrMode::Async/>
                    <Route path=path!("/services/:id/retry") view=ServicePage ssr=SsrMode::Async/>
                    <Route path=path!("/services/:id/upgrade") view=ServicePage ssr=SsrMode::Async/>
                    <Route path=path!("/services/:id/cancel/:task") view=ServicePage ssr=SsrMode::Async/>
                    <Route path=path!("/services/:id/drift") view=ServicePage ssr=SsrMode::Async/>
                    <Route path=path!("/services/:id/rollback") view=ServicePage ssr=SsrMode::Async/>
                    <Route path=path!("/services/:id/pause") view=ServicePage ssr=SsrMode::Async/>
                    <Route path=path!("/services/:id/window") view=ServicePage ssr=SsrMode::Async/>
                    <Route path=path!("/rollouts") view=RolloutsPage ssr=SsrMode::Async/>
                    <Route path=path!("/rollouts/halt") view=RolloutsPage ssr=SsrMode::Async/>
                    <Route path=path!("/rollouts/resume") view=RolloutsPage ssr=SsrMode::Async/>
                    <Route path=path!("/rollouts/:type/halt") view=RolloutsPage ssr=SsrMode::Async/>
                    <Route path=path!("/rollouts/:type/resume") view=RolloutsPage ssr=SsrMode::Async/>
                    <Route path=path!("/drift") view=DriftPage ssr=SsrMode::Async/>
                    <Route path=path!("/drift/breaker/release") view=DriftPage ssr=SsrMode::Async/>
                    <Route path=path!("/drift/orphans/:id/ignore") view=DriftPage ssr=SsrMode::Async/>
                    <Route path=path!("/workflows") view=WorkflowsPage ssr=SsrMode::Async/>
                    <Route path=path!("/services/:id/delete") view=DeletePage ssr=SsrMode::Async/>
                    <Route path=path!("/catalog") view=CatalogPage ssr=SsrMode::Async/>
                    <Route path=path!("/request/:type") view=RequestPage ssr=SsrMode::Async/>
                </Routes>
            </Frame>
        </Router>
    }
}
