// Takes over the page once the module is there. Without it everything can still be read and posted.
import init, { hydrate } from "/pkg/svcforge.js";
await init({ module_or_path: "/pkg/svcforge_bg.wasm" });
hydrate();
document.documentElement.dataset.hydrated = "true";
await import("/stream.js");
