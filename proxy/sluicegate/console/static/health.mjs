/** Health: whether Sluice is ready, why not, what an operator should know, and which version runs. */
import { useEffect } from "./vendor/hooks.mjs";
import { Resource } from "./net.mjs";
import { Peer, Region, Verdict, html, useLive } from "./ui.mjs";
import { servers, stateOf } from "./servers.mjs";

const ready = new Resource("/readyz", "", [503]);
const api = new Resource("/api/v1/openapi.json");

export function Health() {
  useLive(ready);
  useLive(servers);
  useEffect(() => void api.load(), []);
  const sentences = (/** @type {string[]} */ all, /** @type {any} */ none) => all.length
    ? html`<ul class="sentences">${all.map((text) => html`<li><${Peer} text=${text} /></li>`)}</ul>` : html`<p class="dim">${none}</p>`;
  return html`<header class="head"><h1>Health</h1></header>
    <div class="columns"><section class="panel" aria-labelledby="h-ready"><header><h2 id="h-ready">Readiness</h2></header>
      <${Region} resource=${ready} title="Readiness">${(/** @type {any} */ { status, reasons, notes }) => html`<p><${Verdict} word=${status} tone=${status === "ready" ? "good" : "bad"} /></p>
        <section class="block"><h3>What keeps it from being ready</h3>${sentences(reasons, "Nothing.")}</section>
        <section class="block"><h3>What an operator should know</h3>${sentences(notes ?? [], html`Nothing. <code>sluice check</code> looks at the config on disk.`)}</section>`}<//></section>
    <section class="panel" aria-labelledby="h-version"><header><h2 id="h-version">Version</h2></header>
      <${Region} resource=${api} title="Version">${(/** @type {any} */ { info }) => html`<p class="figure"><${Peer} text=${info.version} /></p><p class="dim">Sluice, as this process runs it.</p>`}<//>
      <section class="block"><h3>Servers</h3><${Region} resource=${servers} title="Servers" isEmpty=${(/** @type {any} */ data) => !data.servers.length} empty=${html`<p>No server is configured.</p>`}>${(/** @type {any} */ data) => html`
        <ul class="sentences">${data.servers.map((/** @type {any} */ one) => html`<li><a href=${`/console/servers/${encodeURIComponent(one.key)}`}><${Peer} text=${one.key} /></a> <${Verdict} word=${stateOf(one)} /></li>`)}</ul>`}<//></section></section></div>`;
}
