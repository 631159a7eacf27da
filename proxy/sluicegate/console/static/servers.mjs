/** Servers: how each is doing, its last words, and what it waits for. */
import { useState } from "./vendor/hooks.mjs";
import { Resource, post, withStepUp } from "./net.mjs";
import { Confirm, Lines, Peer, Region, Time, Verdict, html, plural, size, spoken, useLive, visible } from "./ui.mjs";
import { query, route, go } from "./router.mjs";

export const servers = new Resource("/api/v1/servers");

/** One word for how it is doing. @param {any} one */
export const stateOf = (one) => (one.needs_login ? "login_needed" : one.status === "up" && one.circuit === "open" ? "open" : one.status);

/** What a person can do about it, where that is known. @param {any} one */
export function hintOf(one) {
  if (one.needs_login) return `Log in to it: sluice login ${one.key}`;
  return one.status === "down" ? "sluice doctor says what is missing on this machine." : "";
}

export function Servers() {
  useLive(servers);
  const chosen = route.value.item, sought = (query.value.get("q") ?? "").toLowerCase();
  const rows = (/** @type {any} */ data) => data.servers.filter((/** @type {any} */ one) => one.key.toLowerCase().includes(sought));
  return html`<div class=${`split ${chosen ? "has-item" : ""}`}>
    <section class="list" aria-label="Servers"><header class="head"><h1>Servers</h1></header>
      <input class="search" type="search" data-filter placeholder="Filter by name" aria-label="Filter servers by name" value=${query.value.get("q") ?? ""}
        onInput=${(/** @type {any} */ event) => go(`/console/servers${event.target.value ? `?q=${encodeURIComponent(event.target.value)}` : ""}`, true)} />
      <${Region} resource=${servers} title="Servers" isEmpty=${(/** @type {any} */ data) => rows(data).length === 0}
        empty=${sought ? html`<h3>No server has that name</h3>` : html`<h3>No server is configured</h3><p><code>sluice init</code> takes over the servers of your client.</p>`}>
        ${(/** @type {any} */ data) => html`<ul class="rows" data-rows>${rows(data).map((/** @type {any} */ one) => html`<li key=${one.key}>
          <a class="row" href=${`/console/servers/${encodeURIComponent(one.key)}`} aria-current=${one.key === chosen ? "true" : undefined}>
            <span class="row-top"><b><${Peer} text=${one.key} /></b><${Verdict} word=${stateOf(one)} /></span>
            <span class="row-sub"><span><${Peer} text=${one.transport} /></span>${(one.revisions ?? []).map((/** @type {string} */ revision) => html`<span><${Peer} text=${revision} /></span>`)}
              ${one.in_flight !== undefined && html`<span>${one.in_flight} in flight</span>`}${one.restarts > 0 && html`<span>${plural(one.restarts, "restart")}</span>`}${one.noise && html`<span>noise on stdout</span>`}</span>${hintOf(one) && html`<span class="row-sub">${visible(hintOf(one))}</span>`}</a></li>`)}</ul>`}<//>
    </section>
    <section class="detail" aria-label="One server">${chosen ? html`<a class="back" href="/console/servers">← All servers</a>
      <${Region} resource=${servers} title="This server">${(/** @type {any} */ data) => html`<${Server} one=${data.servers.find((/** @type {any} */ row) => row.key === chosen)} />`}<//>`
    : html`<div class="empty wide"><h2>Choose a server</h2><p>Its state, its last error and what it wrote to stderr are shown here.</p></div>`}</section></div>`;
}

function Server({ one }) {
  if (!one) return html`<div class="empty"><h3>There is no such server</h3><p>It may have been removed from the config.</p></div>`;
  const facts = [
    ["Transport", one.transport], ["Revisions", (one.revisions ?? []).join(", ")], ["Processes", (one.pids ?? []).join(", ")],
    ["Connections", one.connections], ["In flight", one.in_flight], ["Waiting", one.waiting], ["Suspended", one.parked],
    ["Restarts", one.restarts], ["Circuit", one.circuit], ["Memory", size(one.memory) || ""], ["Pins", one.pins], ["Last exit", one.exit],
  ].filter(([, value]) => value !== undefined && value !== "" && value !== null);
  return html`<article class="card"><header class="card-head"><div><h2><${Peer} text=${one.key} /></h2><p class="meta"><${Verdict} word=${stateOf(one)} /></p></div></header>
    <${Actions} key=${one.key} one=${one} />
    ${one.last_error && html`<section class="block"><h3>Last error</h3><p class="note bad"><${Peer} text=${one.last_error} /></p></section>`}
    ${hintOf(one) && html`<p class="note wait">${visible(hintOf(one))}</p>`}
    ${one.noise && html`<section class="block"><h3>On stdout <span class="author">written by the server, and no message</span></h3><${Lines} lines=${[one.noise]} label="On stdout" /><p class="dim">Only messages belong there: it has to log to stderr.</p></section>`}
    <dl class="facts grid">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd><${Peer} text=${value} /></dd></div>`)}</dl>
    ${one.timeline?.length > 0 && html`<section class="block" aria-label="How it started"><h3>How it started</h3><ol class="steps">${one.timeline.map((/** @type {any} */ step, /** @type {number} */ index) => html`
      <li><${Time} at=${step.at} /> <b>${step.step}</b>${index > 0 && html` <span class="dim">after ${seconds(step, one.timeline[index - 1])}</span>`}${step.why && html` <${Peer} text=${step.why} />`}</li>`)}</ol></section>`}
    <section class="block"><h3>stderr <span class="author">written by the server</span></h3>${one.stderr?.length ? html`<${Lines} lines=${one.stderr} label="Last lines of stderr" />`
      : html`<p class="dim">It wrote nothing to stderr.</p>`}</section></article>`;
}

/** @param {{at: string}} step @param {{at: string}} before */
const seconds = (step, before) => `${((Date.parse(step.at) - Date.parse(before.at)) / 1000).toFixed(1)} s`;

const ACTIONS = {
  restart: ["Restart", "It ends and starts again."],
  reconnect: ["Reconnect", "Lost connections are made again at once. Open calls go on."],
  disable: ["Disable", "It ends, and stays off until somebody enables it or Sluice starts again. Clients no longer see what it has."],
  enable: ["Enable", "It starts, and clients see again what it has."],
};

function Actions({ one }) {
  const [asked, setAsked] = useState(""), [done, setDone] = useState("");
  const path = `/api/v1/servers/${encodeURIComponent(one.key)}/`;
  const act = (/** @type {string} */ action) => withStepUp({ name: one.key, why: "Sluice is not ready without this server" }, async () => {
    const { open_calls: count } = await post(path + action);
    setDone(`${ACTIONS[action][0]}: done.${count ? ` ${plural(count, "open call")} ended as outcome_unknown.` : ""}`);
    spoken.value = `${ACTIONS[action][0]} ${one.key}: done`;
    void servers.load(false);
  }, setDone);
  const names = one.status === "disabled" ? ["enable"] : ["restart", "reconnect", "disable"];
  const ends = ["restart", "disable"].includes(asked);
  return html`<div class="actions start">${names.map((name) => html`<button onClick=${() => { setDone(""); setAsked(name); }}>${ACTIONS[name][0]}</button>`)}</div>
    ${done && html`<p class="note" role="status"><${Peer} text=${done} /></p>`}
    ${asked && html`<${Confirm} title=${html`${ACTIONS[asked][0]} <${Peer} text=${one.key} />?`} action=${`${ACTIONS[asked][0]} ${visible(one.key)}`} run=${() => act(asked)} onClose=${() => setAsked("")}>
      <p>${ACTIONS[asked][1]}</p>${ends && html`<p class=${one.in_flight ? "note wait" : "dim"}>${one.in_flight
    ? `${plural(one.in_flight, "call")} open now: ${one.in_flight === 1 ? "it ends" : "they end"} as outcome_unknown, because nobody knows whether the server did it.` : "No call is open now."}</p>`}<//>`}`;
}
